// The number of replicas of each shard when workers are lost and return, in the coordinator's
// catalogue and on the workers' disks.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "tests/agent/cluster_testing.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int kCopies = 2;

class Copies : public TestClusterProcesses {
 protected:
  // The workers that have each shard, by step, attempt and rank.
  using Holders = std::map<std::tuple<int64_t, int64_t, int32_t>, std::set<std::string>>;

  Holders InCatalogue(const std::string& job) {
    Holders holders;
    v1::ListCheckpointsRequest list;
    list.set_job(job);
    v1::ListCheckpointsResponse listed;
    grpc::ClientContext listing;
    EXPECT_TRUE(stub_->ListCheckpoints(&listing, list, &listed).ok());
    for (const v1::Checkpoint& checkpoint : listed.checkpoints()) {
      v1::DescribeCheckpointRequest request;
      *request.mutable_ref() = checkpoint.ref();
      v1::DescribeCheckpointResponse response;
      grpc::ClientContext context;
      if (!stub_->DescribeCheckpoint(&context, request, &response).ok()) continue;
      for (const v1::CheckpointShard& shard : response.shards()) {
        holders[{checkpoint.ref().step(), checkpoint.ref().attempt(), shard.rank()}].insert(
            shard.holders().begin(), shard.holders().end());
      }
    }
    return holders;
  }
  // Sealed shards, whether or not their checkpoint is committed.
  Holders OnDisks(const std::string& job) const {
    Holders holders;
    for (const auto& [worker, pid] : processes_) {
      const fs::path store = root_ / worker / "jobs" / job / "checkpoints";
      const auto directories = ScanStore(store.string());
      if (!directories.ok()) continue;
      for (const StoredDirectory& directory : *directories) {
        const fs::path path = store / DirectoryName(directory);
        const auto ranks = ScanShards(path.string());
        if (!ranks.ok()) continue;
        for (const int32_t rank : *ranks) {
          if (!fs::exists(path / SealFileName(rank))) continue;
          holders[{directory.step, directory.attempt, rank}].insert(worker);
        }
      }
    }
    return holders;
  }
  // After the job has ended: every shard of its newest checkpoint has the wanted number of
  // replicas, those of other checkpoints have at most that, and disks and catalogue agree.
  bool IsInOrder(const std::string& job) {
    const Holders holders = InCatalogue(job);
    if (holders.empty() || holders != OnDisks(job)) return false;
    const int64_t newest = std::get<0>(holders.rbegin()->first);
    return std::all_of(holders.begin(), holders.end(), [newest](const auto& shard) {
      return std::get<0>(shard.first) == newest ? shard.second.size() == kCopies
                                                : shard.second.size() <= kCopies;
    });
  }
  std::string Text(const std::string& job) {
    std::string text;
    for (const auto& [where, holders] :
         {std::pair("catalogue", InCatalogue(job)), std::pair("disks", OnDisks(job))}) {
      for (const auto& [shard, workers] : holders) {
        const auto& [step, attempt, rank] = shard;
        text += std::string(where) + ": step " + std::to_string(step) + ", attempt " +
                std::to_string(attempt) + ", rank " + std::to_string(rank) + ":";
        for (const std::string& worker : workers) text += " " + worker;
        text += "\n";
      }
    }
    return text;
  }
  // The number of live workers that store the newest checkpoint's shard of rank 0.
  int64_t PresentCopies(const std::string& job) {
    const v1::DescribeCheckpointResponse newest = Newest(job);
    if (newest.shards().empty()) return 0;
    return std::count_if(newest.shards(0).holders().begin(), newest.shards(0).holders().end(),
                         [this](const std::string& holder) { return processes_.contains(holder); });
  }
  void Finish(const std::string& job) {
    const v1::Job after = Await(job, {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED});
    ASSERT_EQ(after.state(), v1::JOB_STATE_SUCCEEDED) << after.DebugString();
  }
};

TEST_F(Copies, AFinishedJobsCheckpointIsReplicatedAgainWhenAWorkerIsLostAndTrimmedWhenItReturns) {
  StartCoordinator({"--lease-ms", "1000", "--copies", "2"});
  for (const char* name : {"w1", "w2", "w3"}) StartWorker(name, 1);
  const std::string job = Submit(Spec(1, 4, "checkpoints: {at_end: true}\n"));
  Finish(job);
  ASSERT_TRUE(Eventually([&] { return IsInOrder(job); })) << Text(job);
  const std::string lost = Newest(job).shards(0).holders(0);
  KillWorker(lost);
  // The remaining worker replicates it to the third.
  ASSERT_TRUE(Eventually([&] { return PresentCopies(job) == kCopies; })) << Text(job);
  StartWorker(lost, 1);
  // Any one of the three replicas is removed.
  EXPECT_TRUE(Eventually([&] { return IsInOrder(job); })) << Text(job);
}

TEST_F(Copies, ADrainingWorkerRemovesItsShardsOnceOthersHaveThem) {
  StartCoordinator({"--lease-ms", "1000", "--copies", "2"});
  for (const char* name : {"w1", "w2", "w3"}) StartWorker(name, 1);
  const std::string job = Submit(Spec(1, 4, "checkpoints: {at_end: true}\n"));
  Finish(job);
  ASSERT_TRUE(Eventually([&] { return IsInOrder(job); })) << Text(job);
  v1::DrainWorkerRequest drain;
  drain.set_request_id("request-drain");
  drain.set_worker(Newest(job).shards(0).holders(0));
  v1::DrainWorkerResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->DrainWorker(&context, drain, &response).ok());
  EXPECT_TRUE(Eventually([&] {
    const v1::DescribeCheckpointResponse newest = Newest(job);
    if (newest.shards().empty()) return false;
    const auto& holders = newest.shards(0).holders();
    return std::find(holders.begin(), holders.end(), drain.worker()) == holders.end() &&
           IsInOrder(job);
  })) << Text(job);
}

TEST_F(Copies, EachShardHasTheWantedReplicasAfterAWorkerWasReplacedAndReturned) {
  StartCoordinator({"--lease-ms", "1000", "--copies", "2"});
  for (const char* name : {"w1", "w2", "w3"}) StartWorker(name, 1);
  const std::string job = Submit(Spec(2, 60, "checkpoints: {every: 5, keep_last: 2}\n"));
  ASSERT_TRUE(Eventually([&] { return PresentCopies(job) == kCopies; })) << Text(job);
  const v1::Job before = Describe(job);
  ASSERT_EQ(before.attempt().placements_size(), 2) << before.DebugString();
  const std::string lost = before.attempt().placements(1).worker();
  KillWorker(lost);
  ASSERT_TRUE(Eventually([&] { return Describe(job).attempt().number() >= 2; }))
      << Describe(job).DebugString();
  StartWorker(lost, 1);
  Finish(job);
  EXPECT_TRUE(Eventually([&] { return IsInOrder(job); })) << Text(job);
}

}  // namespace
}  // namespace nibble
