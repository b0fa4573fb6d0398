// Which workers keep the copies of a shard, and which get one.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/checkpoint_care.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSubsetOf;
using testing::Not;
using testing::SizeIs;

constexpr int kCopies = 2;

// A job of two ranks on w1, with a checkpoint at step 10, and workers w2 to w5 beside it.
class CheckpointHoldersTest : public testing::Test {
 protected:
  CheckpointHoldersTest() {
    cluster_.AddWorkers(5, 2);
    job_ = cluster_.Submit(2);
    EXPECT_EQ(cluster_.Start(job_), absl::OkStatus());
    EXPECT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
    ref_ = cluster_.state().NewestGood(job_)->ref();
  }

  const State& state() const { return cluster_.state(); }
  const v1::Checkpoint& checkpoint() const { return *state().FindCheckpoint(ref_); }
  const v1::CheckpointShard& shard() const { return *state().FindShard(ref_, 0); }
  std::vector<std::string> Surplus(int copies = kCopies) const {
    return SurplusHolders(state(), checkpoint(), shard(), copies);
  }
  std::vector<std::string> Next() const {
    return NextHolders(state(), ref_, shard(), kCopies, TakersOf(state()));
  }

  // The report of a worker that has the shard of rank 0.
  v1::ShardReport Report() const {
    v1::ShardReport report;
    *report.mutable_ref() = ref_;
    report.set_world(2);
    report.set_bytes(shard().bytes());
    report.set_manifest_crc32c(shard().manifest_crc32c());
    return report;
  }
  void Hold(const std::vector<std::string>& workers) {
    for (const std::string& worker : workers) {
      ASSERT_EQ(cluster_.Run(DecideShardReport(state(), worker, Report(), cluster_.caller())),
                absl::OkStatus());
    }
  }
  void Finish() {
    ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  }
  void Lose(const std::string& worker) {
    ASSERT_EQ(cluster_.Run(DecideWorkerLost(state(), worker, 1, "silent", cluster_.caller())),
              absl::OkStatus());
  }
  void SetMode(const std::string& worker, v1::WorkerMode mode) {
    ASSERT_EQ(cluster_.Apply(cluster_.Facts([&](v1::Fact& fact) {
      fact.mutable_worker_mode_set()->set_worker(worker);
      fact.mutable_worker_mode_set()->set_mode(mode);
    })),
              absl::OkStatus());
  }
  void GiveUp() {
    ASSERT_EQ(cluster_.Run(DecideSurplus(state(), job_, kCopies, cluster_.caller())),
              absl::OkStatus());
  }

  TestCluster cluster_;
  std::string job_;
  v1::CheckpointRef ref_;
};

TEST_F(CheckpointHoldersTest, ACopyIsSurplusOnlyIfEnoughOthersArePresent) {
  Finish();
  Hold({"w2"});
  EXPECT_THAT(Surplus(), IsEmpty());
  Hold({"w3"});
  EXPECT_THAT(Surplus(), SizeIs(1));
  EXPECT_THAT(Surplus(1), SizeIs(2));
  Lose("w2");
  EXPECT_THAT(Surplus(), IsEmpty());
  GiveUp();
  EXPECT_THAT(shard().holders(), SizeIs(3));  // the one that is away, too
}

TEST_F(CheckpointHoldersTest, TheChoiceOfHoldersDoesNotDependOnTheirOrder) {
  Finish();
  Hold({"w2", "w3", "w4"});
  v1::CheckpointShard reversed = shard();
  std::reverse(reversed.mutable_holders()->begin(), reversed.mutable_holders()->end());
  EXPECT_THAT(Surplus(), SizeIs(2));
  EXPECT_EQ(SurplusHolders(state(), checkpoint(), reversed, kCopies), Surplus());
}

TEST_F(CheckpointHoldersTest, ADrainingWorkersCopyIsDroppedFirstAndNotCounted) {
  Finish();
  Hold({"w2"});
  SetMode("w2", v1::WORKER_MODE_DRAINING);
  Hold({"w3"});
  EXPECT_THAT(Surplus(), ElementsAre("w2"));
  SetMode("w3", v1::WORKER_MODE_DRAINING);
  EXPECT_THAT(Surplus(), IsEmpty());
}

TEST_F(CheckpointHoldersTest, CopiesOnADrainingWorkerAreReplacedBeforeTheyAreGivenUp) {
  Finish();
  Hold({"w2"});
  EXPECT_THAT(Next(), IsEmpty());
  SetMode("w2", v1::WORKER_MODE_DRAINING);
  ASSERT_THAT(Next(), SizeIs(1));
  EXPECT_THAT(Surplus(), IsEmpty());
  SetMode("w1", v1::WORKER_MODE_DRAINING);
  ASSERT_THAT(Next(), SizeIs(2));
  Hold(Next());
  EXPECT_THAT(Next(), IsEmpty());
  EXPECT_THAT(Surplus(), testing::UnorderedElementsAre("w1", "w2"));
}

TEST_F(CheckpointHoldersTest, ATaskStaysWithItsWorkerWhileOthersGetCopies) {
  v1::VerifyCheckpointRequest verify;
  verify.set_request_id(cluster_.Id());
  *verify.mutable_ref() = ref_;
  ASSERT_EQ(cluster_.Do<v1::VerifyCheckpointResponse>(verify).status(), absl::OkStatus());
  Hold({"w3"});
  Lose("w1");
  const auto doer = [&] {
    std::vector<std::string> workers;
    for (const auto& [worker, work] : CareFor(state(), job_, kCopies, TakersOf(state())).work) {
      if (!work.tasks.empty()) workers.push_back(worker);
    }
    return workers;
  };
  EXPECT_THAT(doer(), ElementsAre("w3"));
  Hold({"w2"});
  EXPECT_THAT(doer(), ElementsAre("w3"));
  Lose("w3");
  EXPECT_THAT(doer(), ElementsAre("w2"));
}

TEST_F(CheckpointHoldersTest, ShardsThatOnlyDrainingWorkersHaveAreCountedUntilOneThatStaysHasThem) {
  EXPECT_EQ(CountSoleShards(state(), "w1"), 0);
  SetMode("w1", v1::WORKER_MODE_DRAINING);
  EXPECT_EQ(CountSoleShards(state(), "w1"), 2);  // of both ranks
  EXPECT_EQ(CountSoleShards(state(), "w2"), 0);
  Hold({"w2"});
  EXPECT_EQ(CountSoleShards(state(), "w1"), 1);
  SetMode("w2", v1::WORKER_MODE_DRAINING);
  EXPECT_EQ(CountSoleShards(state(), "w1"), 2);
  EXPECT_EQ(CountSoleShards(state(), "w2"), 1);
  Hold({"w3"});
  EXPECT_EQ(CountSoleShards(state(), "w2"), 0);
  // An older checkpoint gets no copies: nobody waits for them.
  ASSERT_EQ(cluster_.Checkpoint(job_, 20), absl::OkStatus());
  EXPECT_EQ(CountSoleShards(state(), "w1"), 2);
  // Nor is there anything to wait for where no worker may take a copy.
  for (const std::string other : {"w3", "w4", "w5"}) SetMode(other, v1::WORKER_MODE_CORDONED);
  EXPECT_EQ(CountSoleShards(state(), "w1"), 0);
}

TEST_F(CheckpointHoldersTest, AnUploadStaysWithItsWorkerWhileThatIsPresent) {
  const auto uploaders = [this] {
    std::vector<std::string> names;
    for (const auto& [worker, work] : CareFor(state(), job_, kCopies, TakersOf(state())).work) {
      if (!work.tasks.empty()) names.push_back(worker);
    }
    return names;
  };
  Hold({"w2"});
  ASSERT_EQ(FindMostHolder(state(), ref_), "w1");
  ASSERT_EQ(cluster_.Run(DecideUpload(state(), ref_, {.place = "s3://runs/lab", .worker = "w2"},
                                      cluster_.caller())),
            absl::OkStatus());
  EXPECT_THAT(uploaders(), ElementsAre("w2")) << "w1 has more shards";
  // One at a time.
  const MaybeUpdate again =
      DecideUpload(state(), ref_, {.place = "s3://runs/lab"}, cluster_.caller());
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_FALSE(again->has_value());
  Lose("w2");
  EXPECT_THAT(uploaders(), ElementsAre("w1"));
}

TEST_F(CheckpointHoldersTest, AnOpenWorkersCopyStaysBeforeACordonedOnes) {
  Finish();
  Hold({"w2", "w3"});
  for (const std::string cordoned : {"w1", "w2", "w3"}) {
    SetMode(cordoned, v1::WORKER_MODE_CORDONED);
    EXPECT_THAT(Surplus(), ElementsAre(cordoned));
    SetMode(cordoned, v1::WORKER_MODE_OPEN);
  }
}

TEST_F(CheckpointHoldersTest, TheRankThatWroteAShardKeepsItWhileItsAttemptLives) {
  Hold({"w2", "w3", "w4", "w5"});
  EXPECT_THAT(Surplus(1), testing::UnorderedElementsAre("w2", "w3", "w4", "w5"));
  Finish();
  EXPECT_THAT(Surplus(1), SizeIs(4));
}

TEST_F(CheckpointHoldersTest, TheCheckpointThatAnAttemptResumedFromStaysOnItsWorkers) {
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED), absl::OkStatus());
  Hold({"w2", "w3", "w4", "w5"});
  cluster_.now_ms += 60'000;
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  const std::string worker = cluster_.Job(job_).attempt().placements(0).worker();
  EXPECT_THAT(Surplus(1), Not(Contains(worker)));
  EXPECT_THAT(Surplus(1), SizeIs(4));
  // A fork of it, on another worker.
  v1::ForkJobRequest fork;
  fork.set_request_id(cluster_.Id());
  *fork.mutable_checkpoint() = ref_;
  fork.add_settings("training.repeat=1");
  const auto forked = cluster_.Do<v1::ForkJobResponse>(fork);
  ASSERT_EQ(forked.status(), absl::OkStatus());
  ASSERT_EQ(cluster_.Launch(forked->job().id()), absl::OkStatus());
  const std::string other = cluster_.Job(forked->job().id()).attempt().placements(0).worker();
  ASSERT_NE(other, worker);
  EXPECT_THAT(Surplus(1), Not(Contains(other)));
  EXPECT_THAT(Surplus(1), SizeIs(3));
}

TEST_F(CheckpointHoldersTest, CheckpointsThatATaskReadsOrThatAreDamagedKeepEveryCopy) {
  Finish();
  Hold({"w2", "w3"});
  v1::VerifyCheckpointRequest verify;
  verify.set_request_id(cluster_.Id());
  *verify.mutable_ref() = ref_;
  ASSERT_EQ(cluster_.Do<v1::VerifyCheckpointResponse>(verify).status(), absl::OkStatus());
  EXPECT_THAT(Surplus(), IsEmpty());
  EXPECT_FALSE(IsUnwanted(state(), "w4", Report(), kCopies));
  v1::TaskReport done;
  *done.mutable_ref() = ref_;
  done.set_task(1);
  done.set_state(v1::CHECKPOINT_TASK_STATE_FAILED);
  done.set_damaged(true);
  ASSERT_EQ(cluster_.Run(DecideTaskReport(state(), "w1", done, cluster_.caller())),
            absl::OkStatus());
  EXPECT_THAT(Surplus(), IsEmpty());
}

TEST_F(CheckpointHoldersTest, AWorkerThatReportsASurplusCopyDoesNotBecomeAHolder) {
  Finish();
  EXPECT_FALSE(IsUnwanted(state(), "w2", Report(), kCopies));
  Hold({"w2"});
  EXPECT_FALSE(IsUnwanted(state(), "w2", Report(), kCopies));
  EXPECT_TRUE(IsUnwanted(state(), "w3", Report(), kCopies));
  v1::ShardReport other = Report();
  other.set_manifest_crc32c(other.manifest_crc32c() + 1);
  EXPECT_FALSE(IsUnwanted(state(), "w3", other, kCopies));  // it is refused with its reason
  Lose("w2");
  EXPECT_FALSE(IsUnwanted(state(), "w3", Report(), kCopies));
}

// Workers come, go, are cordoned and drained: none is ordered to drop a copy that is then missing,
// nor to take one that is then surplus.
TEST_F(CheckpointHoldersTest, ACopyThatWasGivenUpIsNotRequestedAgain) {
  Finish();
  std::mt19937 random(7);
  int given_up = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::string worker = "w" + std::to_string(random() % 5 + 1);
    const bool present = state().FindWorker(worker)->present();
    switch (random() % 4) {
      case 0:
        if (present) Lose(worker);
        break;
      case 1:
        ASSERT_EQ(cluster_.Register(worker, 1, 2), absl::OkStatus());
        break;
      case 2:
        SetMode(worker, static_cast<v1::WorkerMode>(random() % 3 + v1::WORKER_MODE_OPEN));
        break;
      case 3:
        if (present && !IsUnwanted(state(), worker, Report(), kCopies)) Hold({worker});
        break;
    }
    const std::vector<std::string> before = PresentHolders(state(), shard());
    const std::vector<std::string> requested = Next();
    GiveUp();
    EXPECT_THAT(Surplus(), IsEmpty());
    const std::vector<std::string> after = PresentHolders(state(), shard());
    EXPECT_THAT(after, IsSubsetOf(before));
    EXPECT_GE(after.size(), std::min<size_t>(before.size(), kCopies));
    EXPECT_EQ(Next(), requested);
    for (const std::string& taker : requested) {
      EXPECT_FALSE(IsUnwanted(state(), taker, Report(), kCopies));
    }
    for (const std::string& gone : before) {
      if (std::find(after.begin(), after.end(), gone) != after.end()) continue;
      ++given_up;
      EXPECT_TRUE(IsUnwanted(state(), gone, Report(), kCopies));
    }
  }
  EXPECT_GT(given_up, 20);
}

}  // namespace
}  // namespace nibble
