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
    coordinator_.Tick();
    for (const char* name : {"w2", "w3"}) {
      Report(name);
      (w(name).desired.replicas_size() == 1 ? taker_ : other_) = name;
    }
    EXPECT_FALSE(taker_.empty() || other_.empty());
  }

  TestWorker& w(const std::string& name) { return workers_.at(name); }
  void Report(const std::string& name) {
    w(name).report.set_all_shards(true);
    ASSERT_EQ(w(name).Report(), absl::OkStatus());
  }
  // The worker learns of its orders and then has a copy.
  void Copy(const std::string& name) {
    Report(name);
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
    Copy(taker_);
    Lose(taker_);
    Copy(other_);
    EXPECT_THAT(Holders(), SizeIs(3));
    EXPECT_THAT(OrderedToDrop(), SizeIs(0));  // the first one reports again
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
  std::string taker_;  // w2 or w3: is ordered to make a copy
  std::string other_;  // the other one
};

TEST_F(ControllerCopiesTest, ADamagedCopyIsGivenUpAndDropped) {
  Copy(taker_);
  EXPECT_THAT(Holders(), SizeIs(2));
  FindDamage(taker_, taker_);
  EXPECT_THAT(Holders(), testing::ElementsAre("w1"));
  EXPECT_EQ(State(), v1::CHECKPOINT_STATE_COMMITTED);
  ASSERT_THAT(w(taker_).desired.dropped(), SizeIs(1));
  EXPECT_EQ(w(taker_).desired.dropped(0).kind(), v1::DELETION_KIND_DAMAGED);
  EXPECT_NE(w(taker_).desired.dropped(0).reason(), "");
  EXPECT_TRUE(w(taker_).desired.dropped(0).has_order());
  // A report from before it learnt of this does not make it a holder again.
  Report(taker_);
  EXPECT_THAT(Holders(), testing::ElementsAre("w1"));
  w(taker_).report.set_desired_number(w(taker_).desired.number());
  w(taker_).report.clear_shards();
  Report(taker_);
  EXPECT_THAT(w(taker_).desired.dropped(), SizeIs(0));
  // The copy it has fetched since is good.
  Copy(taker_);
  EXPECT_THAT(Holders(), SizeIs(2));
}

TEST_F(ControllerCopiesTest, ADamagedCopyThatAnotherStoreOrderedStays) {
  Copy(taker_);
  w(taker_).report.mutable_shards(0)->mutable_store()->set_id(std::string(32, 'f'));
  FindDamage(taker_, taker_);
  EXPECT_THAT(Holders(), testing::ElementsAre("w1"));
  EXPECT_THAT(w(taker_).desired.dropped(), SizeIs(0));
  // Once it has it by order of this one.
  w(taker_).report.mutable_shards(0)->clear_store();
  Report(taker_);
  EXPECT_THAT(w(taker_).desired.dropped(), SizeIs(1));
}

TEST_F(ControllerCopiesTest, IfTheOnlyCopyIsDamagedSoIsTheCheckpointAndTheCopyStays) {
  FindDamage(taker_, "w1");
  EXPECT_EQ(State(), v1::CHECKPOINT_STATE_DAMAGED);
  EXPECT_THAT(Holders(), testing::ElementsAre("w1"));
  Report("w1");
  EXPECT_THAT(w("w1").desired.dropped(), SizeIs(0));
}

TEST_F(ControllerCopiesTest, DamageReportedOfANonHolderChangesNothing) {
  FindDamage(taker_, other_);
  FindDamage(taker_, "nobody");
  EXPECT_EQ(State(), v1::CHECKPOINT_STATE_COMMITTED);
  EXPECT_THAT(Holders(), testing::ElementsAre("w1"));
}

// A worker that was ordered nothing.
TEST_F(ControllerCopiesTest, ACopyThatWasNotOrderedMakesNoHolder) {
  Copy(other_);
  Report(other_);
  EXPECT_THAT(Holders(), testing::ElementsAre("w1"));
  EXPECT_THAT(w(other_).refused(),
              testing::ElementsAre(testing::HasSubstr("which it was not ordered to make")));
  // It is one as soon as it is ordered: the worker lists what it stores again.
  Lose(taker_);
  Report(other_);
  EXPECT_EQ(w(other_).desired.replicas_size(), 1);
  Report(other_);
  EXPECT_THAT(Holders(), Contains(other_));
}

TEST_F(ControllerCopiesTest, DamageIsReportedByThoseWhoReadTheCopyAlone) {
  FindDamage(other_, "w1");
  EXPECT_EQ(State(), v1::CHECKPOINT_STATE_COMMITTED);
  EXPECT_THAT(w(other_).refused(),
              testing::ElementsAre(testing::HasSubstr("was not ordered to read the copy on 'w1'")));
  FindDamage("w1", "w1");  // its own
  EXPECT_EQ(State(), v1::CHECKPOINT_STATE_DAMAGED);
}

TEST_F(ControllerCopiesTest, ATaskIsEndedByTheWorkerThatWasOrderedToCarryItOut) {
  v1::VerifyCheckpointRequest request;
  *request.mutable_ref() = shard_.ref();
  ASSERT_EQ(coordinator_.Do<v1::VerifyCheckpointResponse>(request).status(), absl::OkStatus());
  coordinator_.Tick();
  const auto end = [&](const std::string& name) {
    v1::TaskReport& task = *w(name).report.add_tasks();
    *task.mutable_ref() = shard_.ref();
    task.set_task(1);
    task.set_state(v1::CHECKPOINT_TASK_STATE_FAILED);
    task.set_damaged(true);
    Report(name);
    w(name).report.clear_tasks();
  };
  end(other_);
  EXPECT_EQ(State(), v1::CHECKPOINT_STATE_COMMITTED);
  EXPECT_THAT(w(other_).refused(),
              testing::ElementsAre(testing::HasSubstr("which it was not ordered to carry out")));
  Report("w1");
  ASSERT_EQ(w("w1").desired.tasks_size(), 1);
  end("w1");
  EXPECT_EQ(State(), v1::CHECKPOINT_STATE_DAMAGED);
}

// The store was never restored: nobody has more of its jobs than it has.
TEST_F(ControllerCopiesTest, AnOrphanOfAKnownJobIsNotBelieved) {
  w("w1").report.clear_gangs();
  Report("w1");
  const std::string live = coordinator_.Submit(1);
  coordinator_.Tick();
  std::string liar;
  for (const char* const name : {"w1", "w2", "w3"}) {
    w(name).Obey(1);
    if (w(name).desired.gangs().empty()) liar = name;
  }
  ASSERT_EQ(coordinator_.Job(live).state(), v1::JOB_STATE_RUNNING);
  for (const std::string& job : {live, job_}) {
    v1::Orphan& orphan = *w(liar).report.add_orphans();
    orphan.set_job(job);
    orphan.set_attempt(99);
    orphan.set_running(true);
    *orphan.add_shards() = shard_;
    orphan.mutable_shards(0)->mutable_ref()->set_job(job);
  }
  Report(liar);
  EXPECT_THAT(w(liar).refused(), testing::ElementsAre(testing::HasSubstr("an orphan of " + job_),
                                                      testing::HasSubstr("an orphan of " + live)));
  EXPECT_EQ(coordinator_.Job(live).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(coordinator_.Job(live).attempts(), 1);
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
  EXPECT_EQ(w(surplus).desired.dropped(0).kind(), v1::DELETION_KIND_SURPLUS);
  EXPECT_NE(w(surplus).desired.dropped(0).reason(), "");
  EXPECT_TRUE(w(surplus).desired.dropped(0).has_order());
  // It still reports the copy: it does not become a holder, and gets the order again.
  EXPECT_THAT(OrderedToDrop(), testing::ElementsAre(surplus));
  EXPECT_THAT(Holders(), Not(Contains(surplus)));
  w(surplus).report.clear_shards();
  EXPECT_THAT(OrderedToDrop(), SizeIs(0));
  coordinator_.Tick();
  EXPECT_THAT(Holders(), SizeIs(2));
  EXPECT_THAT(OrderedToDrop(), SizeIs(0));
}

TEST_F(ControllerCopiesTest, ASurplusCopyThatAnotherStoreOrderedStays) {
  const std::string surplus = MakeSurplus();
  w(surplus).report.mutable_shards(0)->mutable_store()->set_id(std::string(32, 'f'));
  EXPECT_THAT(OrderedToDrop(), SizeIs(0));
  EXPECT_THAT(Holders(), SizeIs(2));
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
