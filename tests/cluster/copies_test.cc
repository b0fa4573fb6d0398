// The number of replicas of each shard when workers are lost and return, in the coordinator's
// catalogue and on the workers' disks.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cluster/cluster_files.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int kCopies = 2;

class Copies : public testing::Test {
 protected:
  // The workers that have each shard, by step, attempt and rank.
  using Holders = std::map<std::tuple<int64_t, int64_t, int32_t>, std::set<std::string>>;

  std::string SubmitHybrid(int ranks, int64_t steps, int64_t every) {
    return bed_.Submit({.ranks = ranks,
                        .steps = steps,
                        .every = every,
                        .keep_last = 2,
                        .sequence = 64,
                        .model = "tiny-hybrid"});
  }
  // Submits a job with one checkpoint, that of its end, and waits until it is in order.
  std::string Finished() {
    const std::string job = SubmitHybrid(1, 4, 100);
    bed_.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
    EXPECT_TRUE(Eventually([&] { return IsInOrder(job); })) << Text(job);
    return job;
  }
  bool Runs(const std::string& worker) {
    const auto record = ReadClusterRecord(bed_.cluster().paths());
    return record.ok() && record->Alive(worker) != nullptr;
  }
  Holders InCatalogue(const std::string& job) {
    Holders holders;
    for (const v1::Checkpoint& checkpoint : bed_.Checkpoints(job)) {
      const v1::CheckpointRef& ref = checkpoint.ref();
      const v1::DescribeCheckpointResponse described = bed_.DescribeCheckpoint(ref);
      for (const v1::CheckpointShard& shard : described.shards()) {
        holders[{ref.step(), ref.attempt(), shard.rank()}].insert(shard.holders().begin(),
                                                                  shard.holders().end());
      }
    }
    return holders;
  }
  // Sealed shards, whether or not their checkpoint is committed.
  Holders OnDisks(const std::string& job) {
    Holders holders;
    for (int number = 1; number <= kWorkers; ++number) {
      const std::string worker = WorkerRole(number);
      if (!Runs(worker)) continue;
      const fs::path store = bed_.Store(worker, job);
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
        absl::StrAppend(&text, where, ": step ", step, ", attempt ", attempt, ", rank ", rank, ": ",
                        absl::StrJoin(workers, " "), "\n");
      }
    }
    return text;
  }
  // The workers that store the newest checkpoint's shard of rank 0.
  std::set<std::string> HoldersOfNewest(const std::string& job) {
    const v1::DescribeCheckpointResponse newest = bed_.NewestCheckpoint(job);
    if (newest.shards().empty()) return {};
    return {newest.shards(0).holders().begin(), newest.shards(0).holders().end()};
  }
  // The number of living workers that store the newest checkpoint's shard, of the rank with the
  // fewest.
  int64_t PresentCopies(const std::string& job) {
    const v1::DescribeCheckpointResponse newest = bed_.NewestCheckpoint(job);
    int64_t fewest = newest.shards().empty() ? 0 : kWorkers;
    for (const v1::CheckpointShard& shard : newest.shards()) {
      const int64_t present =
          std::count_if(shard.holders().begin(), shard.holders().end(),
                        [this](const std::string& holder) { return Runs(holder); });
      fewest = std::min(fewest, present);
    }
    return fewest;
  }

  static constexpr int kWorkers = 3;
  ClusterBed bed_{{.workers = kWorkers,
                   .lease = std::chrono::seconds(3),
                   .coordinator_flags = {"--copies", "2"}}};
};

TEST_F(Copies, AFinishedJobsCheckpointIsReplicatedAgainWhenAWorkerIsLostAndTrimmedWhenItReturns) {
  const std::string job = Finished();
  ASSERT_FALSE(HoldersOfNewest(job).empty()) << Text(job);
  const std::string lost = bed_.NewestCheckpoint(job).shards(0).holders(0);
  bed_.Kill(lost);
  // The remaining worker replicates it to the third.
  ASSERT_TRUE(Eventually([&] { return PresentCopies(job) == kCopies; })) << Text(job);
  bed_.Restart(lost);
  // Any one of the three replicas is removed.
  EXPECT_TRUE(Eventually([&] { return IsInOrder(job); })) << Text(job);
}

TEST_F(Copies, ADrainingWorkerRemovesItsShardsOnceOthersHaveThem) {
  const std::string job = Finished();
  ASSERT_FALSE(HoldersOfNewest(job).empty()) << Text(job);
  const std::string drained = bed_.NewestCheckpoint(job).shards(0).holders(0);
  bed_.Drain(drained);
  EXPECT_TRUE(Eventually([&] {
    const std::set<std::string> holders = HoldersOfNewest(job);
    return !holders.empty() && !holders.contains(drained) && IsInOrder(job);
  })) << Text(job);
}

TEST_F(Copies, EachShardHasTheWantedReplicasAfterAWorkerWasReplacedAndReturned) {
  // Long enough after its only checkpoint that the worker is lost before there is another one,
  // which would not have all its replicas yet.
  const std::string job = SubmitHybrid(2, 400, 200);
  ASSERT_TRUE(Eventually([&] { return PresentCopies(job) == kCopies; })) << Text(job);
  const v1::Job before = bed_.Describe(job);
  ASSERT_EQ(before.attempt().placements_size(), 2) << before.DebugString();
  const std::string lost = before.attempt().placements(1).worker();
  bed_.Kill(lost);
  bed_.ExpectSeen(job, [](const JobWatch::Seen& seen) { return seen.job.attempt().number() >= 2; });
  bed_.Restart(lost);
  bed_.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_TRUE(Eventually([&] { return IsInOrder(job); })) << Text(job);
}

}  // namespace
}  // namespace nibble
