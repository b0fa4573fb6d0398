// Every process of a cluster is replaced, one after another, and nodes are drained, as Kubernetes
// does it with the pods of deploy/kubernetes. A job trains through it without a lost step.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

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

// Makes every step once, in attempts that were planned, with the losses of an undisturbed run.
void ExpectNoLostStep(ClusterBed& bed, const std::string& job, const TinyJob& spec) {
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const v1::Job now = bed.Describe(job);
  EXPECT_EQ(now.blames_size(), 0) << bed.Story(job);
  for (int i = 0; i + 1 < now.recent_attempts_size(); ++i) {
    EXPECT_EQ(now.recent_attempts(i).outcome(), v1::ATTEMPT_OUTCOME_STOPPED) << bed.Story(job);
  }
  EXPECT_EQ(EventsOf(bed.EventLog(job), "step").size(), static_cast<size_t>(spec.steps))
      << bed.Story(job);
  bed.ExpectUndisturbedLosses(job, spec);
}

// Waits until the job has made further steps.
void ExpectProgress(ClusterBed& bed, const std::string& job) {
  const int64_t next = bed.Describe(job).next_step();
  bed.ExpectSeen(job, [next](const JobWatch::Seen& seen) {
    return seen.job.state() == v1::JOB_STATE_RUNNING && seen.job.next_step() > next + 10;
  });
}

TEST(RollingUpdate, OfAllDaemonsAndTheCoordinatorLosesNoStepAndNothingAcknowledged) {
  ClusterBed bed({.workers = 3});
  const TinyJob spec = {.ranks = 2, .steps = 6000, .every = 200};
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
    ExpectProgress(bed, job);
  }
  const auto ranks = bed.LiveRanks();
  ASSERT_EQ(ranks.size(), 2u) << bed.Story(job);
  const auto begun = SteadyClock::now();
  StopPod(bed, kCoordinatorRole);
  StartPod(bed, kCoordinatorRole);
  std::printf("coordinator: back after %.1f s\n", SecondsSince(begun));
  ExpectProgress(bed, job);
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
  ExpectNoLostStep(bed, job, spec);
}

TEST(NodeDrain, AJobMovesToOtherNodesAndContinuesWithoutThatOne) {
  ClusterBed bed({.workers = 3});
  const TinyJob spec = {.ranks = 2, .steps = 2000, .every = 100'000};
  const std::string job = bed.Submit(spec);
  bed.ExpectStep(job, 20);
  const std::string node = bed.LiveRank(job, 0).worker;
  StopPod(bed, node);
  // The node is gone, with its disk: what the job needs is elsewhere.
  std::filesystem::remove_all(bed.cluster().paths().Data(node));
  ExpectProgress(bed, job);
  for (const ClusterBed::Rank& rank : bed.LiveRanks()) EXPECT_NE(rank.worker, node);
  ExpectNoLostStep(bed, job, spec);
}

TEST(NodeDrain, ANodeWithTheOnlyFreeSlotsTakesTheJobBackOnItsReturn) {
  ClusterBed bed({.workers = 1});
  const TinyJob spec = {.steps = 1500, .every = 100'000};
  const std::string job = bed.Submit(spec);
  bed.ExpectStep(job, 20);
  StopPod(bed, WorkerRole(1));
  EXPECT_EQ(bed.Describe(job).state(), v1::JOB_STATE_QUEUED) << bed.Story(job);
  EXPECT_TRUE(bed.LiveRanks().empty());
  StartPod(bed, WorkerRole(1));
  ExpectNoLostStep(bed, job, spec);
}

}  // namespace
}  // namespace nibble
