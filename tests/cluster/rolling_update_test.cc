// Every process of a cluster is replaced, one after another, and nodes are drained, as Kubernetes
// does it with the pods of deploy/kubernetes. A job trains through it without a lost step.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include "client/cluster/cluster_files.h"
#include "common/process/process.h"
#include "gtest/gtest.h"
#include "tests/cluster/clerk.h"
#include "tests/cluster/cluster_bed.h"
#include "tests/cluster/pods.h"

namespace nibble {
namespace {

using SteadyClock = std::chrono::steady_clock;

double SecondsSince(SteadyClock::time_point begun) {
  return std::chrono::duration<double>(SteadyClock::now() - begun).count();
}

// Trains until it is cancelled, however long the updates take.
TinyJob Endless(int ranks, int64_t every) {
  return {.ranks = ranks, .steps = 1'000'000, .every = every, .decay_fraction = 0};
}

TEST(RollingUpdate, OfAllDaemonsAndTheCoordinatorLosesNoStepAndNothingAcknowledged) {
  ClusterBed bed({.workers = 3});
  const TinyJob spec = Endless(/*ranks=*/2, /*every=*/200);
  const std::string job = bed.Submit(spec);
  Clerk clerk(bed);
  bed.ExpectStep(job, 20);
  std::map<std::string, int64_t> before;  // incarnations
  const v1::ListWorkersResponse workers = bed.Ask(kListWorkers);
  for (const v1::Worker& one : workers.workers()) {
    before[one.identity().name()] = one.identity().incarnation();
  }
  // As a StatefulSet: the last first, the next one when it is ready.
  for (int number = 3; number >= 1; --number) {
    const auto begun = SteadyClock::now();
    StopPod(bed, WorkerRole(number));
    const double stopped = SecondsSince(begun);
    StartPod(bed, WorkerRole(number));
    std::printf("%s: drained and stopped in %.1f s, back after %.1f s\n",
                WorkerRole(number).c_str(), stopped, SecondsSince(begun));
    bed.ExpectProgress(job);
  }
  const auto ranks = bed.LiveRanks();
  ASSERT_EQ(ranks.size(), 2u) << bed.Story(job);
  const auto begun = SteadyClock::now();
  StopPod(bed, kCoordinatorRole);
  StartPod(bed, kCoordinatorRole);
  std::printf("coordinator: back after %.1f s\n", SecondsSince(begun));
  bed.ExpectProgress(job);
  // The coordinator's ranks are those from before.
  for (const ClusterBed::Rank& rank : ranks) EXPECT_TRUE(IsAlive(rank.process)) << bed.Story(job);

  const v1::ListWorkersResponse after = bed.Ask(kListWorkers);
  for (const v1::Worker& one : after.workers()) {
    EXPECT_GT(one.identity().incarnation(), before.at(one.identity().name()));
    EXPECT_TRUE(one.present()) << one.ShortDebugString();
    EXPECT_EQ(one.mode(), v1::WORKER_MODE_OPEN) << one.ShortDebugString();
  }
  std::printf("%lld changes acknowledged, none lost\n",
              static_cast<long long>(clerk.ExpectNothingLost(job)));
  bed.ExpectUndisturbedUntilCancelled(job, spec);
  bed.ExpectEachStepOnce(job);
}

// Kubernetes replaces the pods of two StatefulSets at the same time: a worker may have nobody to
// drain with.
TEST(RollingUpdate, OfACoordinatorAndAWorkerAtOnceResumesFromTheNewestCheckpoint) {
  ClusterBed bed({.workers = 2});
  const TinyJob spec = Endless(/*ranks=*/2, /*every=*/50);
  const std::string job = bed.Submit(spec);
  Clerk clerk(bed);
  bed.ExpectCopied(job);
  StopPod(bed, kCoordinatorRole);
  StopPod(bed, WorkerRole(2));
  const int64_t made = LossBits(bed.EventLog(job)).rbegin()->first;
  StartPod(bed, kCoordinatorRole);
  StartPod(bed, WorkerRole(2));
  // Steps after the newest checkpoint are made again.
  bed.ExpectSeen(job, [made](const JobWatch::Seen& seen) {
    return seen.job.attempts() == 2 && seen.job.next_step() > made + 1;
  });
  EXPECT_GT(clerk.ExpectNothingLost(job), 0);
  bed.ExpectUndisturbedUntilCancelled(job, spec);
  EXPECT_EQ(bed.Describe(job).attempts(), 2) << bed.Story(job);
}

TEST(NodeDrain, AJobMovesToOtherNodesAndContinuesWithoutThatOne) {
  ClusterBed bed({.workers = 3});
  const TinyJob spec = Endless(/*ranks=*/2, /*every=*/100'000);
  const std::string job = bed.Submit(spec);
  bed.ExpectStep(job, 20);
  const std::string node = bed.LiveRank(job, 1).worker;  // rank 0 writes the log of losses
  StopPod(bed, node);
  // The node is gone, with its disk: what the job needs is elsewhere.
  std::filesystem::remove_all(bed.cluster().paths().Data(node));
  bed.ExpectProgress(job);
  for (const ClusterBed::Rank& rank : bed.LiveRanks()) EXPECT_NE(rank.worker, node);
  bed.ExpectUndisturbedUntilCancelled(job, spec);
  bed.ExpectEachStepOnce(job);
}

TEST(NodeDrain, ANodeWithTheOnlyFreeSlotsTakesTheJobBackOnItsReturn) {
  ClusterBed bed({.workers = 1});
  const TinyJob spec = Endless(/*ranks=*/1, /*every=*/100'000);
  const std::string job = bed.Submit(spec);
  bed.ExpectStep(job, 20);
  StopPod(bed, WorkerRole(1));
  EXPECT_EQ(bed.Describe(job).state(), v1::JOB_STATE_QUEUED) << bed.Story(job);
  EXPECT_TRUE(bed.LiveRanks().empty());
  StartPod(bed, WorkerRole(1));
  bed.ExpectProgress(job);
  bed.ExpectUndisturbedUntilCancelled(job, spec);
  bed.ExpectEachStepOnce(job);
}

}  // namespace
}  // namespace nibble
