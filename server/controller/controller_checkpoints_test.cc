// Copies of shards across reports, ticks and answers: which workers are ordered to make or drop a
// copy, and how stale reports are treated.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/controller.h"
#include "server/controller/testing.h"

namespace nibble {
namespace {

using testing::Contains;
using testing::Not;
using testing::SizeIs;

// A job finished on w1; w1 and w2 have its result. A lease is ten seconds.
class ControllerCopiesTest : public testing::Test {
 protected:
  ControllerCopiesTest() {
    for (const char* name : {"w1", "w2", "w3"}) workers_.try_emplace(name, coordinator_, name, 1);
    job_ = w("w1").RunJob(1, 1);
    w("w1").Store(10);
    w("w1").report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_SUCCEEDED);
    Report("w1");
    shard_ = w("w1").report.shards(0);
    for (const char* name : {"w2", "w3"}) Report(name);
    EXPECT_EQ(coordinator_.Job(job_).state(), v1::JOB_STATE_SUCCEEDED);
  }

  TestWorker& w(const std::string& name) { return workers_.at(name); }
  void Report(const std::string& name) {
    w(name).report.set_all_shards(true);
    ASSERT_EQ(w(name).Report(), absl::OkStatus());
  }
  void Copy(const std::string& name) {
    *w(name).report.add_shards() = shard_;
    Report(name);
  }
  // A worker reports a damaged copy.
  void FindDamage(const std::string& reader, const std::string& holder) {
    v1::DamagedShard& damage = *w(reader).report.add_damaged();
    *damage.mutable_ref() = shard_.ref();
    damage.set_rank(shard_.rank());
    damage.set_holder(holder);
    damage.set_detail("shard-00000.sst: chunk 3");
    Report(reader);
    w(reader).report.clear_damaged();
  }
  v1::CheckpointState State() {
    v1::DescribeCheckpointRequest request;
    *request.mutable_ref() = shard_.ref();
    const auto response = coordinator_.controller().Read(request);
    EXPECT_EQ(response.status(), absl::OkStatus());
    return response->checkpoint().state();
  }
  // The lease of one worker expires; the others report.
  void Lose(const std::string& lost) {
    for (int i = 0; i < 2; ++i) {
      coordinator_.clock.Advance(6'000);
      for (const auto& [name, worker] : workers_) {
        if (name != lost) Report(name);
      }
    }
    coordinator_.Tick();
  }
  std::vector<std::string> Holders() {
    v1::DescribeCheckpointRequest request;
    *request.mutable_ref() = shard_.ref();
    const auto response = coordinator_.controller().Read(request);
    EXPECT_EQ(response.status(), absl::OkStatus());
    if (!response.ok() || response->shards_size() != 1) return {};
    return {response->shards(0).holders().begin(), response->shards(0).holders().end()};
  }
  // The workers that are ordered to drop the shard, in the answers to their current reports.
  std::vector<std::string> OrderedToDrop() {
    std::vector<std::string> ordered;
    for (auto& [name, worker] : workers_) {
      Report(name);
      if (worker.desired.dropped_size() > 0) ordered.push_back(name);
    }
    return ordered;
  }
  // Three present workers have it.
  void MakeThree() {
    Copy("w2");
    Lose("w2");
    Copy("w3");
    EXPECT_THAT(Holders(), SizeIs(3));
    EXPECT_THAT(OrderedToDrop(), SizeIs(0));  // w2 reports again
    EXPECT_THAT(Holders(), SizeIs(3));
  }
  // As above, then one copy is given up; returns its worker.
  std::string MakeSurplus() {
    MakeThree();
    coordinator_.Tick();
    const std::vector<std::string> left = Holders();
    EXPECT_THAT(left, SizeIs(2));
    for (const auto& [name, worker] : workers_) {
      if (std::find(left.begin(), left.end(), name) == left.end()) return name;
    }
    return "";
  }

  TestCoordinator coordinator_;
  std::map<std::string, TestWorker> workers_;
  std::string job_;
  v1::ShardReport shard_;
};

TEST_F(ControllerCopiesTest, ADamagedCopyIsGivenUpAndDropped) {
  Copy("w2");
  FindDamage("w3", "w2");
  EXPECT_THAT(Holders(), testing::ElementsAre("w1"));
  EXPECT_EQ(State(), v1::CHECKPOINT_STATE_COMMITTED);
  // A report from before it learnt of this does not make it a holder again.
  Report("w2");
  EXPECT_THAT(Holders(), testing::ElementsAre("w1"));
  EXPECT_THAT(w("w2").desired.dropped(), SizeIs(1));
  w("w2").report.set_desired_number(w("w2").desired.number());
  w("w2").report.clear_shards();
  Report("w2");
  EXPECT_THAT(w("w2").desired.dropped(), SizeIs(0));
  // The copy it has fetched since is good.
  Copy("w2");
  EXPECT_THAT(Holders(), SizeIs(2));
}

TEST_F(ControllerCopiesTest, IfTheOnlyCopyIsDamagedSoIsTheCheckpointAndTheCopyStays) {
  FindDamage("w3", "w1");
  EXPECT_EQ(State(), v1::CHECKPOINT_STATE_DAMAGED);
  EXPECT_THAT(Holders(), testing::ElementsAre("w1"));
  Report("w1");
  EXPECT_THAT(w("w1").desired.dropped(), SizeIs(0));
}

TEST_F(ControllerCopiesTest, DamageReportedOfANonHolderChangesNothing) {
  FindDamage("w3", "w2");
  FindDamage("w3", "nobody");
  EXPECT_EQ(State(), v1::CHECKPOINT_STATE_COMMITTED);
  EXPECT_THAT(Holders(), testing::ElementsAre("w1"));
}

TEST_F(ControllerCopiesTest, TheResultOfAFinishedJobIsReplicatedAgainWhenAHolderIsLost) {
  coordinator_.Tick();
  std::string taker;
  for (const char* name : {"w2", "w3"}) {
    Report(name);
    if (w(name).desired.replicas_size() == 1) taker = name;
  }
  ASSERT_NE(taker, "");
  EXPECT_EQ(w(taker).desired.replicas(0).sources(0), "w1:7000");
  Copy(taker);
  coordinator_.Tick();
  Report(taker);
  EXPECT_EQ(w(taker).desired.replicas_size(), 0);
  Lose(taker);
  const std::string other = taker == "w2" ? "w3" : "w2";
  Report(other);
  EXPECT_EQ(w(other).desired.replicas_size(), 1);
}

TEST_F(ControllerCopiesTest, ASurplusCopyIsGivenUpBeforeItIsDropped) {
  const std::string surplus = MakeSurplus();
  EXPECT_THAT(OrderedToDrop(), testing::ElementsAre(surplus));
  // It still reports the copy: it does not become a holder, and gets the order again.
  EXPECT_THAT(OrderedToDrop(), testing::ElementsAre(surplus));
  EXPECT_THAT(Holders(), Not(Contains(surplus)));
  w(surplus).report.clear_shards();
  EXPECT_THAT(OrderedToDrop(), SizeIs(0));
  coordinator_.Tick();
  EXPECT_THAT(Holders(), SizeIs(2));
  EXPECT_THAT(OrderedToDrop(), SizeIs(0));
}

TEST_F(ControllerCopiesTest, NoCopyIsOrderedDroppedBeforeItIsDurablyGivenUp) {
  const auto ordered = [this] {
    int drops = 0;
    for (auto& [name, worker] : workers_) {
      worker.Fetch();
      drops += worker.desired.dropped_size();
    }
    return drops;
  };
  MakeThree();
  coordinator_.store().Hold();
  coordinator_.controller().Tick();
  EXPECT_EQ(ordered(), 0);
  coordinator_.store().Release();
  coordinator_.controller().Settle();
  EXPECT_EQ(ordered(), 1);
}

TEST_F(ControllerCopiesTest, ARestartBetweenGivingUpAndDroppingChangesNothing) {
  const std::string surplus = MakeSurplus();
  coordinator_.Restart();
  for (auto& [name, worker] : workers_) worker.Reconnect();
  coordinator_.Tick();
  EXPECT_THAT(OrderedToDrop(), testing::ElementsAre(surplus));
  coordinator_.Tick();
  EXPECT_THAT(Holders(), SizeIs(2));
  EXPECT_THAT(Holders(), Not(Contains(surplus)));
}

TEST_F(ControllerCopiesTest,
       AWorkerOrderedToDropACopyIsAHolderAgainOnlyAfterAcknowledgingTheOrder) {
  const std::string surplus = MakeSurplus();
  ASSERT_THAT(OrderedToDrop(), testing::ElementsAre(surplus));
  const int64_t ordered = w(surplus).desired.number();
  // Now a copy is missing, but the worker's report is from before the order.
  w(surplus).report.set_desired_number(ordered - 1);
  Lose(Holders()[0]);
  Report(surplus);
  EXPECT_THAT(Holders(), Not(Contains(surplus)));
  EXPECT_EQ(w(surplus).desired.dropped_size(), 0);
  // It has acknowledged the order, and yet still has the copy.
  w(surplus).report.set_desired_number(w(surplus).desired.number());
  Report(surplus);
  EXPECT_THAT(Holders(), Contains(surplus));
}

}  // namespace
}  // namespace nibble
