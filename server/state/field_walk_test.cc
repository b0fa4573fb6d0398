#include "server/state/field_walk.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/update.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"

namespace nibble {
namespace {

using testing::ElementsAre;

// Keeps what it is shown, and ends the walk at `last`.
class RecordingVisitor : public FieldVisitor {
 public:
  explicit RecordingVisitor(std::string last = "none") : last_(std::move(last)) {}

  absl::Status OnMessage(const std::string& path, const google::protobuf::Message&) override {
    return Keep(absl::StrCat("message ", path));
  }
  absl::Status OnList(const VisitedField& list, int size) override {
    return Keep(absl::StrCat("list ", list.path, " ", size, " ", list.field.name()));
  }
  absl::Status OnValue(const VisitedField& value) override {
    return Keep(absl::StrCat("value ", value.path, " ", value.index, " ", value.field.name()));
  }

  std::vector<std::string> seen;

 private:
  absl::Status Keep(std::string one) {
    seen.push_back(std::move(one));
    return seen.back() == last_ ? absl::OutOfRangeError(last_) : absl::OkStatus();
  }
  const std::string last_;
};

v1::ConnectRequest ReportOfTwoGangs() {
  v1::ConnectRequest report;
  report.set_cluster("c");
  report.add_gangs()->set_job("a-1");
  v1::GangReport& gang = *report.add_gangs();
  gang.set_phase(v1::RANK_PHASE_RUNNING);
  gang.add_ranks()->set_rank(3);
  gang.mutable_precision();
  return report;
}

TEST(FieldWalkTest, EveryFieldThatIsSetIsVisitedInOrderWithItsPath) {
  RecordingVisitor visitor;
  EXPECT_EQ(VisitFields(ReportOfTwoGangs(), visitor), absl::OkStatus());
  EXPECT_THAT(
      visitor.seen,
      ElementsAre("message ", "value cluster -1 cluster", "list gangs 2 gangs", "message gangs[0]",
                  "value gangs[0].job -1 job", "message gangs[1]", "value gangs[1].phase -1 phase",
                  "list gangs[1].ranks 1 ranks", "message gangs[1].ranks[0]",
                  "value gangs[1].ranks[0].rank -1 rank", "message gangs[1].precision"));
}

TEST(FieldWalkTest, EntriesOfAListOfValuesAreVisitedByIndex) {
  v1::DesiredGang gang;
  gang.add_slots(5);
  gang.add_slots(0);
  RecordingVisitor visitor;
  EXPECT_EQ(VisitFields(gang, visitor), absl::OkStatus());
  EXPECT_THAT(visitor.seen, ElementsAre("message ", "list slots 2 slots", "value slots[0] 0 slots",
                                        "value slots[1] 1 slots"));
}

TEST(FieldWalkTest, AnErrorEndsTheWalk) {
  for (const char* const last :
       {"message gangs[0]", "list gangs 2 gangs", "value gangs[0].job -1 job"}) {
    RecordingVisitor visitor(last);
    EXPECT_EQ(VisitFields(ReportOfTwoGangs(), visitor), absl::OutOfRangeError(last));
    EXPECT_EQ(visitor.seen.back(), last);
  }
}

TEST(FieldWalkTest, AFieldOfANewerProgramIsFoundInItsMessageOnly) {
  v1::ConnectRequest report = ReportOfTwoGangs();
  v1::GangReport& gang = *report.mutable_gangs(1);
  gang.GetReflection()->MutableUnknownFields(&gang)->AddVarint(1007, 1);
  EXPECT_EQ(UnknownFieldOf(gang), 1007);
  EXPECT_EQ(UnknownFieldOf(report), 0);
}

}  // namespace
}  // namespace nibble
