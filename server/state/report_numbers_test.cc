#include "server/state/report_numbers.h"

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;

// Calls `each` with every message type below `from`, and a report in which one message of the type
// is set, at the path of the call.
class ReportFields {
 public:
  template <class Each>
  static int ForEach(const Each& each) {
    v1::ConnectRequest report;
    std::set<const Descriptor*> seen;
    return Walk(report, report, "", seen, each);
  }

 private:
  template <class Each>
  static int Walk(const v1::ConnectRequest& report, Message& message, const std::string& path,
                  std::set<const Descriptor*>& seen, const Each& each) {
    if (!seen.insert(message.GetDescriptor()).second) return 0;
    int fields = 0;
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor& field = *message.GetDescriptor()->field(i);
      const std::string at = absl::StrCat(path, path.empty() ? "" : ".", field.name());
      const auto& reflection = *message.GetReflection();
      if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        EXPECT_FALSE(field.is_repeated() && field.cpp_type() != FieldDescriptor::CPPTYPE_STRING)
            << at << ": a list of numbers, which CheckNumbers does not look at";
        fields += each(report, message, field, at);
      } else if (field.is_repeated()) {
        fields += Walk(report, *reflection.AddMessage(&message, &field), at + "[0]", seen, each);
      } else {
        fields += Walk(report, *reflection.MutableMessage(&message, &field), at, seen, each);
      }
      reflection.ClearField(&message, &field);
    }
    return fields;
  }
};

TEST(ReportNumbersTest, EveryNumberOfAReportHasBoundsAndItsErrorNamesIt) {
  const int checked =
      ReportFields::ForEach([](const v1::ConnectRequest& report, Message& message,
                               const FieldDescriptor& field, const std::string& at) {
        const auto& reflection = *message.GetReflection();
        const auto refused = [&](const std::string& value) {
          const absl::Status status = CheckNumbers(report);
          EXPECT_TRUE(absl::IsInvalidArgument(status)) << at << " " << value;
          EXPECT_EQ(std::string(status.message()).substr(0, at.size() + 2), at + ": ") << status;
        };
        switch (field.cpp_type()) {
          case FieldDescriptor::CPPTYPE_INT32:
            for (const int32_t value : {-2, std::numeric_limits<int32_t>::min()}) {
              reflection.SetInt32(&message, &field, value);
              refused(absl::StrCat(value));
            }
            return 1;
          case FieldDescriptor::CPPTYPE_INT64:
            for (const int64_t value : {int64_t{-2}, std::numeric_limits<int64_t>::min(),
                                        kMaxCount + 1, std::numeric_limits<int64_t>::max()}) {
              reflection.SetInt64(&message, &field, value);
              refused(absl::StrCat(value));
            }
            return 1;
          default:
            return 0;
        }
      });
  EXPECT_GT(checked, 40);
}

TEST(ReportNumbersTest, ARunMayDivergeButItsDurationsAreNumbers) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  v1::ConnectRequest report;
  v1::StepSample& sample = *report.add_gangs()->add_samples();
  sample.set_loss(nan);
  sample.set_gradient_norm(std::numeric_limits<double>::infinity());
  report.mutable_gangs(0)->mutable_precision()->set_mean_relative_error(nan);
  EXPECT_EQ(CheckNumbers(report), absl::OkStatus());
  for (const double value : {nan, -1.0, std::numeric_limits<double>::infinity()}) {
    sample.set_step_seconds(value);
    EXPECT_EQ(std::string(CheckNumbers(report).message()).substr(0, 36),
              "gangs[0].samples[0].step_seconds: " + absl::StrCat(value).substr(0, 2));
  }
  sample.set_step_seconds(0.5);
  report.mutable_gangs(0)->add_ranks()->set_work_seconds(nan);
  EXPECT_EQ(CheckNumbers(report).message(),
            "gangs[0].ranks[0].work_seconds: nan; allowed: 0 or more, finite");
}

TEST(ReportNumbersTest, AnUnknownNumaNodeIsNotANumberOutOfBounds) {
  v1::ConnectRequest report;
  report.mutable_identity()->mutable_topology()->add_slots()->set_numa_node(-1);
  EXPECT_EQ(CheckNumbers(report), absl::OkStatus());
  report.mutable_identity()->mutable_topology()->add_links()->set_other(
      static_cast<int32_t>(kMaxSlots));
  EXPECT_EQ(CheckNumbers(report).message(),
            "identity.topology.links[0].other: 1024; allowed: 0 to 1023");
}

}  // namespace
}  // namespace nibble
