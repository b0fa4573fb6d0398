// One store with several histories: a backup restored while a worker is lost, a copy that nobody
// announced, and two coordinators of one store that are both alive.
#include <chrono>
#include <filesystem>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cluster/cluster_files.h"
#include "client/cluster/local_processes.h"
#include "client/remote/rpcs.h"
#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"
#include "tests/cluster/other_coordinator.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

// Names of the checkpoints, committed or sealed, that a worker stores of a job.
std::set<std::string> StoredOn(const ClusterBed& bed, const std::string& worker,
                               const std::string& job) {
  std::set<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(bed.Store(worker, job), ignored)) {
    const std::string name = entry.path().filename().string();
    // Without its stage: a checkpoint may be committed, or reopened for its copies.
    const size_t step = name.find("0000");
    if (entry.is_directory() && step != std::string::npos) found.insert(name.substr(step));
  }
  return found;
}

TEST(Histories, ARestoredCoordinatorWithALostWorkerKeepsEveryNewerCheckpoint) {
  ClusterBed bed({.workers = 2,
                  .lease = ClusterBed::kShortLease,
                  .coordinator_flags = {"--copies", "2"}});
  const TinyJob tiny = {.ranks = 2, .steps = 2500, .every = 100, .keep_last = 2};
  const std::string job = bed.Submit(tiny);
  bed.ExpectCopied(job);
  const std::string store = bed.cluster().paths().Data(kCoordinatorRole);
  bed.Kill(kCoordinatorRole);
  fs::copy(store, store + ".backup", fs::copy_options::recursive);
  bed.Restart(kCoordinatorRole);
  const int64_t known = bed.Describe(job).checkpoint_step();
  // Checkpoints of which the first worker has every shard, and none that the backup knows.
  v1::DescribeCheckpointResponse newest;
  ASSERT_TRUE(Eventually([&] {
    newest = bed.NewestCheckpoint(job);
    return newest.checkpoint().ref().step() >= known + 300 && IsCopied(newest);
  })) << bed.Story(job);
  const int64_t step = newest.checkpoint().ref().step();

  const std::string lost = newest.shards(1).holders(0);
  const std::string left = lost == WorkerRole(1) ? WorkerRole(2) : WorkerRole(1);
  bed.Kill(kCoordinatorRole);
  bed.Kill(lost);
  const std::set<std::string> before = StoredOn(bed, left, job);
  ASSERT_GE(before.size(), 2u);
  fs::remove_all(store);
  fs::rename(store + ".backup", store);
  bed.SetCoordinatorFlags({"--copies", "2", "--restored"});
  bed.Restart(kCoordinatorRole);
  // The lost worker's lease ends, and with it the attempt that the backup knows.
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).state() != v1::JOB_STATE_RUNNING; }));
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() >= step; }))
      << bed.Story(job);
  EXPECT_THAT(StoredOn(bed, left, job), IsSupersetOf(before)) << bed.Story(job);

  fs::remove_all(bed.cluster().paths().Data(lost));
  bed.Restart(lost);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  bed.ExpectUndisturbedLosses(job, tiny);
}

TEST(Histories, ACopyOfTheStoreThatNobodyAnnouncedDeletesNothingAndKillsNoRank) {
  ClusterBed bed({.workers = 2, .proxies = true});
  const TinyJob tiny = {.ranks = 2, .steps = 2500, .every = 100};
  const std::string job = bed.Submit(tiny);
  ASSERT_TRUE(Eventually([&] { return !bed.Checkpoints(job).empty(); })) << bed.Story(job);
  const std::string store = bed.cluster().paths().Data(kCoordinatorRole);
  bed.Kill(kCoordinatorRole);
  fs::copy(store, store + ".copy", fs::copy_options::recursive);
  bed.Restart(kCoordinatorRole);
  const int64_t known = bed.Describe(job).checkpoint_step();
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() >= known + 200; }))
      << bed.Story(job);
  const auto ranks = bed.LiveRanks();
  ASSERT_EQ(ranks.size(), 2u);

  // The copy takes the original's place. Before workers come back it makes more updates than they
  // have seen of the original, and is restarted.
  bed.Kill(kCoordinatorRole);
  std::set<std::string> before = StoredOn(bed, WorkerRole(1), job);
  for (const int worker : {1, 2}) bed.proxy(WorkerRole(worker)).Set(TcpProxy::Mode::kCut);
  fs::rename(store, store + ".original");
  fs::rename(store + ".copy", store);
  bed.Restart(kCoordinatorRole);
  for (int i = 0; i < 300; ++i) {
    v1::SetJobPriorityRequest request;
    request.set_priority(i % 2);
    (void)bed.AskAbout(job, kSetJobPriority, request);
  }
  bed.Kill(kCoordinatorRole);
  bed.Restart(kCoordinatorRole);
  for (const int worker : {1, 2}) bed.proxy(WorkerRole(worker)).Set(TcpProxy::Mode::kPass);

  const int64_t newest = known + 200;
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() > newest; }))
      << bed.Story(job);
  for (const auto& rank : ranks) EXPECT_TRUE(IsAlive(rank.process)) << bed.Story(job);
  EXPECT_THAT(Shell("cat " + bed.cluster().paths().Log(kCoordinatorRole)).text,
              HasSubstr("epoch 2 of the store begins ("));
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(bed.Describe(job).attempts(), 1) << bed.Story(job);
  bed.ExpectUndisturbedLosses(job, tiny);
}

TEST(Histories, OfTwoLivingCoordinatorsTheOldOneIsReplacedAndTheJobRunsOn) {
  ClusterBed bed({.workers = 2, .proxies = true});
  const TinyJob tiny = {.ranks = 2, .steps = 2500, .every = 100};
  const std::string job = bed.Submit(tiny);
  ASSERT_TRUE(Eventually([&] { return !bed.Checkpoints(job).empty(); })) << bed.Story(job);
  const std::string store = bed.cluster().paths().Data(kCoordinatorRole);
  bed.Kill(kCoordinatorRole);
  fs::copy(store, bed.root() + "/other", fs::copy_options::recursive);
  bed.Restart(kCoordinatorRole);
  bed.ExpectProgress(job);

  const int port = ChooseFreePort().value_or(0);
  const int old_port = std::stoi(bed.address().substr(bed.address().rfind(':') + 1));
  OtherCoordinator other(
      bed, bed.root() + "/other",
      {.address = absl::StrCat("127.0.0.1:", port), .flags = {"--restored"}});
  const auto move_workers = [&](int to) {
    for (const int worker : {1, 2}) {
      TcpProxy& proxy = bed.proxy(WorkerRole(worker));
      proxy.SetTarget(to);
      proxy.Set(TcpProxy::Mode::kCut);
      proxy.Set(TcpProxy::Mode::kPass);
    }
  };
  const CoordinatorStub stub(absl::StrCat("127.0.0.1:", port));
  const auto known_to_other = [&] {
    v1::DescribeJobResponse response;
    (void)stub.Call(kDescribeJob, OfJob<v1::DescribeJobRequest>(job), &response,
                    {.waits_for_ready = true,
                     .deadline = std::chrono::system_clock::now() + std::chrono::seconds(10)});
    return response.job();
  };
  move_workers(port);
  const int64_t step = bed.Describe(job).checkpoint_step();
  ASSERT_TRUE(Eventually([&] { return known_to_other().checkpoint_step() > step; }))
      << other.Log();
  // The workers come back to the old one and show it what they have seen.
  move_workers(old_port);
  std::string refusal;
  ASSERT_TRUE(Eventually([&] {
    v1::SetJobPriorityRequest request = OfJob<v1::SetJobPriorityRequest>(job);
    request.set_priority(1);
    v1::SetJobPriorityResponse response;
    refusal = std::string(bed.Call(kSetJobPriority, request, &response).message());
    return absl::StrContains(refusal, "this coordinator was replaced");
  })) << refusal;
  EXPECT_THAT(refusal, HasSubstr("--restored"));
  // Also after a restart.
  bed.Kill(kCoordinatorRole);
  ASSERT_TRUE(bed.cluster().Start(kCoordinatorRole).ok());
  v1::SetJobPriorityResponse response;
  EXPECT_EQ(bed.Call(kSetJobPriority, OfJob<v1::SetJobPriorityRequest>(job), &response).code(),
            absl::StatusCode::kFailedPrecondition);
  move_workers(port);
  ASSERT_TRUE(Eventually([&] { return known_to_other().state() == v1::JOB_STATE_SUCCEEDED; }))
      << other.Log();
  EXPECT_EQ(known_to_other().attempts(), 1);
  EXPECT_THAT(other.Log(), HasSubstr("epoch 2 of the store begins ("));
  EXPECT_FALSE(absl::StrContains(other.Log(), "epoch 3 of the store begins"));
  bed.ExpectUndisturbedLosses(job, tiny);
}

}  // namespace
}  // namespace nibble
