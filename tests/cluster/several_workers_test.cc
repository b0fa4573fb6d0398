// Gangs that run on several workers, and workers that are lost.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cluster/cluster_files.h"
#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

// Its steps are slow enough that a worker can be killed between two checkpoints.
TinyJob HybridJob(int ranks, int64_t steps, int64_t every, int64_t keep_last = 2) {
  return {.ranks = ranks,
          .steps = steps,
          .every = every,
          .keep_last = keep_last,
          .sequence = 64,
          .validate_every = 50,
          .precision_every = 100,
          .model = "tiny-hybrid"};
}

// Submits a job of two ranks with one checkpoint, that of its end, and returns it.
v1::DescribeCheckpointResponse CheckpointOfTwoWorkers(ClusterBed& bed) {
  const std::string job = bed.Submit(HybridJob(2, 6, 1000));
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  return bed.NewestCheckpoint(job);
}

// Overwrites some bytes of every file with chunks in the tree.
void DamageChunks(const fs::path& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.path().extension() != ".sst") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 3));
    file.write("damage", 6);
  }
}

// The result of a task, as its checkpoint lists it.
v1::CheckpointTask AwaitTask(ClusterBed& bed, const v1::CheckpointRef& ref, int64_t number) {
  v1::CheckpointTask task;
  EXPECT_TRUE(Eventually([&] {
    const v1::DescribeCheckpointResponse described = bed.DescribeCheckpoint(ref);
    for (const v1::CheckpointTask& one : described.checkpoint().tasks()) {
      if (one.number() == number) task = one;
    }
    return task.state() == v1::CHECKPOINT_TASK_STATE_DONE ||
           task.state() == v1::CHECKPOINT_TASK_STATE_FAILED;
  }));
  return task;
}

v1::CheckpointTask Verified(ClusterBed& bed, const v1::CheckpointRef& ref) {
  v1::VerifyCheckpointRequest request;
  *request.mutable_ref() = ref;
  return AwaitTask(bed, ref, bed.Ask(kVerifyCheckpoint, request).task());
}

TEST(SeveralWorkers, AGangThatLosesAWorkerResumesFromReplicasWithBitwiseEqualLosses) {
  ClusterBed bed(
      {.workers = 3, .lease = std::chrono::seconds(4), .coordinator_flags = {"--copies", "2"}});
  const TinyJob spec = HybridJob(2, 120, 5);
  ASSERT_EQ(bed.UndisturbedLosses(spec).size(), 120u);
  const std::string job = bed.Submit(spec);
  ASSERT_TRUE(Eventually([&] { return IsCopied(bed.NewestCheckpoint(job)); })) << bed.Story(job);
  const v1::Job before = bed.Describe(job);
  ASSERT_EQ(before.state(), v1::JOB_STATE_RUNNING) << before.DebugString();
  ASSERT_EQ(before.attempt().placements_size(), 2);
  bed.Kill(bed.LiveRank(job, 1).worker);

  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const v1::Job after = bed.Describe(job);
  EXPECT_GE(after.attempts(), 2);
  EXPECT_LE(after.attempts(), 6) << bed.Story(job);
  EXPECT_TRUE(after.recent_attempts().rbegin()->has_resume()) << after.DebugString();
  bed.ExpectUndisturbedLosses(job, spec);
}

TEST(SeveralWorkers, TheRemainingRanksResumeFromTheShardsOfLostOnes) {
  ClusterBed bed(
      {.workers = 2, .lease = std::chrono::seconds(4), .coordinator_flags = {"--copies", "2"}});
  v1::JobScheduling elastic;
  elastic.add_allowed_ranks(1);
  elastic.add_allowed_ranks(2);
  const std::string job = bed.Submit(HybridJob(2, 120, 5), elastic);
  ASSERT_TRUE(Eventually([&] { return IsCopied(bed.NewestCheckpoint(job)); })) << bed.Story(job);
  const v1::Job before = bed.Describe(job);
  ASSERT_EQ(before.attempt().world(), 2) << before.DebugString();
  bed.Kill(bed.LiveRank(job, 0).worker);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const v1::Job after = bed.Describe(job);
  const v1::Attempt& last = *after.recent_attempts().rbegin();
  EXPECT_EQ(last.world(), 1);
  EXPECT_GE(last.resume().step(), 5) << after.DebugString();
}

TEST(SeveralWorkers, AForkBeginsWithItsParentsShardsOnAnyWorker) {
  ClusterBed bed({.workers = 2, .coordinator_flags = {"--copies", "1"}});
  const std::string parent = bed.Submit(HybridJob(2, 12, 4, 8));
  bed.ExpectState(parent, v1::JOB_STATE_SUCCEEDED);
  v1::ForkJobRequest request;
  request.mutable_checkpoint()->set_job(parent);
  request.mutable_checkpoint()->set_step(4);
  request.set_name("fork");
  request.add_settings("checkpoints.at_end=false");  // without a difference it is refused
  const std::string fork = bed.Ask(kForkJob, request).job().id();
  bed.ExpectState(fork, v1::JOB_STATE_SUCCEEDED);
  // With the same recipe it repeats its parent's losses.
  std::map<int64_t, uint64_t> parents = LossBits(bed.EventLog(parent));
  std::erase_if(parents, [](const auto& loss) { return loss.first < 4; });
  const std::map<int64_t, uint64_t> losses = LossBits(bed.EventLog(fork));
  EXPECT_EQ(FirstDifference(losses, parents), "") << bed.Story(fork);
  EXPECT_EQ(losses.size(), 8u);
}

TEST(SeveralWorkers, ACheckpointAcrossWorkersIsVerifiedAndExported) {
  ClusterBed bed({.workers = 2, .coordinator_flags = {"--copies", "1"}});
  const v1::DescribeCheckpointResponse newest = CheckpointOfTwoWorkers(bed);
  ASSERT_EQ(newest.shards_size(), 2);
  // Each worker has one shard.
  ASSERT_EQ(newest.shards(0).holders_size(), 1);
  EXPECT_NE(newest.shards(0).holders(0), newest.shards(1).holders(0));

  const v1::CheckpointRef ref = newest.checkpoint().ref();
  const v1::CheckpointTask verified = Verified(bed, ref);
  EXPECT_EQ(verified.state(), v1::CHECKPOINT_TASK_STATE_DONE) << verified.detail();
  EXPECT_THAT(verified.detail(), HasSubstr("all 2 shards pass their checksums"));

  const fs::path model = bed.root() + "/model";
  v1::ExportCheckpointRequest request;
  *request.mutable_ref() = ref;
  request.set_destination(model.string());
  const v1::CheckpointTask done = AwaitTask(bed, ref, bed.Ask(kExportCheckpoint, request).task());
  EXPECT_EQ(done.state(), v1::CHECKPOINT_TASK_STATE_DONE) << done.detail();
  EXPECT_TRUE(fs::exists(model / "config.json"));
  EXPECT_TRUE(fs::exists(model / "model.safetensors"));
}

TEST(SeveralWorkers, DamageWithoutAnIntactReplicaIsNamedAndTheCheckpointIsNotLoadedAgain) {
  ClusterBed bed({.workers = 2, .coordinator_flags = {"--copies", "1"}});
  const v1::DescribeCheckpointResponse newest = CheckpointOfTwoWorkers(bed);
  ASSERT_EQ(newest.shards_size(), 2);
  const v1::CheckpointRef ref = newest.checkpoint().ref();
  DamageChunks(bed.Store(newest.shards(1).holders(0), ref.job()));
  const v1::CheckpointTask verified = Verified(bed, ref);
  EXPECT_EQ(verified.state(), v1::CHECKPOINT_TASK_STATE_FAILED);
  EXPECT_THAT(verified.detail(), HasSubstr("rank 1"));
  EXPECT_THAT(verified.detail(), HasSubstr("chunk"));
  EXPECT_EQ(bed.DescribeCheckpoint(ref).checkpoint().state(), v1::CHECKPOINT_STATE_DAMAGED);
}

TEST(SeveralWorkers, IfTheNewestCheckpointIsDamagedTheJobResumesFromThePreviousOne) {
  ClusterBed bed({.workers = 1});
  const TinyJob spec = HybridJob(1, 120, 5);
  const std::string job = bed.Submit(spec);
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() >= 10; }));
  bed.Kill("worker-1");
  ASSERT_EQ(bed.Describe(job).state(), v1::JOB_STATE_RUNNING);
  // All checkpoints but the oldest, including incomplete ones: step-000000000010-attempt-…
  std::map<std::string, fs::path> stored;
  for (const auto& entry : fs::directory_iterator(bed.Store("worker-1", job))) {
    if (entry.is_directory()) stored[entry.path().filename().string()] = entry.path();
  }
  const auto oldest = std::find_if(stored.begin(), stored.end(), [](const auto& directory) {
    return directory.first.starts_with("step-");
  });
  ASSERT_NE(oldest, stored.end());
  for (const auto& [name, directory] : stored) {
    if (name != oldest->first) DamageChunks(directory);
  }
  bed.Restart("worker-1");
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  bed.ExpectUndisturbedLosses(job, spec);
  const v1::Job after = bed.Describe(job);
  const auto& attempts = after.recent_attempts();
  ASSERT_GE(attempts.size(), 3) << after.DebugString();
  EXPECT_THAT(attempts[1].reason(), HasSubstr("is damaged"));
  EXPECT_EQ(attempts.rbegin()->resume().step(), std::stoll(oldest->first.substr(5)));
}

TEST(SeveralWorkers, DamageFoundByAnotherWorkerIsReportedAndThePreviousCheckpointIsUsed) {
  ClusterBed bed({.workers = 2, .coordinator_flags = {"--copies", "1"}});
  const TinyJob spec = HybridJob(1, 60, 5, 3);
  const std::string job = bed.Submit(spec);
  // At least two: while one is being written, the next waits for a later step.
  ASSERT_TRUE(Eventually([&] { return bed.Checkpoints(job).size() >= 2; }));
  (void)bed.AskAbout(job, kPauseJob);
  bed.ExpectState(job, v1::JOB_STATE_PAUSED);
  const v1::Job paused = bed.Describe(job);
  // One being written is also committed; paused ranks begin no other.
  ASSERT_TRUE(Eventually([&] {
    return paused.next_step() - bed.NewestCheckpoint(job).checkpoint().ref().step() < 5;
  })) << bed.Story(job);
  const v1::DescribeCheckpointResponse newest = bed.NewestCheckpoint(job);
  const int64_t newest_step = newest.checkpoint().ref().step();
  const ClusterBed::Rank rank = bed.LiveRank(job, 0);
  const std::string holder = rank.worker;
  ASSERT_EQ(newest.shards(0).holders(0), holder);
  // Only its slots are unavailable, not its checkpoints.
  bed.Drain(holder, /*cordon_only=*/true);
  // The coordinator commits; the holder renames its directory after it has heard of that.
  const std::string prefix = absl::StrFormat("step-%012d-", newest_step);
  fs::path committed;
  ASSERT_TRUE(Eventually([&] {
    for (const auto& entry : fs::directory_iterator(bed.Store(holder, job))) {
      if (entry.path().filename().string().starts_with(prefix)) committed = entry.path();
    }
    return !committed.empty();
  })) << bed.Story(job);
  DamageChunks(committed);
  SignalProcess(rank.process, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return !bed.Describe(job).has_attempt(); }));
  (void)bed.AskAbout(job, kResumeJob);

  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  bed.ExpectUndisturbedLosses(job, spec);
  const v1::Job after = bed.Describe(job);
  const auto& attempts = after.recent_attempts();
  ASSERT_EQ(attempts.size(), 3) << after.DebugString();
  EXPECT_EQ(attempts[1].resume().step(), newest_step);
  EXPECT_EQ(attempts[1].cause(), v1::FAILURE_CAUSE_CHECKPOINT) << after.DebugString();
  EXPECT_GT(attempts[2].resume().step(), 0);
  EXPECT_LT(attempts[2].resume().step(), newest_step);
  const v1::Checkpoint found = bed.DescribeCheckpoint(attempts[1].resume()).checkpoint();
  EXPECT_EQ(found.state(), v1::CHECKPOINT_STATE_DAMAGED);
  EXPECT_THAT(found.damage(), HasSubstr("on " + holder));
  // The worker that read it is not blamed.
  const std::string starter = attempts[1].placements(0).worker();
  EXPECT_NE(starter, holder);
  for (const v1::WorkerBlame& blame : after.blames()) EXPECT_NE(blame.worker(), starter);
}

TEST(SeveralWorkers, AJobWaitsForAFullDiskAndItsLossesAreUnchanged) {
  if (!EnterOwnMounts()) GTEST_SKIP() << "this machine does not permit mounting a small disk";
  ClusterBed bed({.workers = 1, .disks = true});
  const TinyJob spec = HybridJob(1, 100, 10, 1);
  const std::string job = bed.Submit(spec);
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() >= 10; }));
  // All steps are still made; then the job waits for space to store its state, and reports that.
  // Space that a failed checkpoint frees is also filled.
  ASSERT_TRUE(Eventually([&] {
    bed.SetFull("worker-1", true);
    const v1::Job now = bed.Describe(job);
    return now.next_step() == 100 && !now.trouble().empty();
  })) << bed.Story(job);
  const v1::Job waits = bed.Describe(job);
  EXPECT_EQ(waits.state(), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(waits.trouble(), HasSubstr("the disk is full"));
  EXPECT_THAT(waits.trouble(), HasSubstr("jobs/" + job));
  EXPECT_THAT(waits.trouble(), Not(HasSubstr(bed.root())));
  EXPECT_LT(waits.checkpoint_step(), 100);
  bed.SetFull("worker-1", false);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const v1::Job after = bed.Describe(job);
  EXPECT_EQ(after.attempts(), 1) << after.DebugString();
  EXPECT_EQ(after.checkpoint_step(), 100);
  EXPECT_EQ(after.trouble(), "");
  EXPECT_EQ(after.blames_size(), 0);
  // The event log is also complete.
  bed.ExpectUndisturbedLosses(job, spec);
  (void)bed.ExpectEvent(
      job, [](const v1::JobEvent& event) { return event.kind() == v1::JOB_EVENT_KIND_TROUBLE; });
}

}  // namespace
}  // namespace nibble
