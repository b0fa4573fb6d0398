// The cluster itself: its name, workers, leases and queues, and forgetting jobs.
#include <string>

#include "gtest/gtest.h"
#include "server/state/testing.h"
#include "server/state/views.h"
#include "server/state/workers.h"

namespace nibble {
namespace {

using Code = absl::StatusCode;

TEST(ClusterState, AnotherClustersStateIsRefusedNamingBoth) {
  TestCluster cluster;
  EXPECT_EQ(cluster.Run(DecideStart(cluster.state(), "test", {}, false, cluster.caller())),
            absl::OkStatus());
  EXPECT_EQ(cluster.Run(DecideStart(cluster.state(), "prod", {}, false, cluster.caller())),
            absl::FailedPreconditionError("cluster: this is 'test', not 'prod'"));
}

TEST(ClusterState, NoUpdateAppliesBeforeTheClusterHasAName) {
  State state;
  v1::Update update;
  update.set_sequence(1);
  update.set_author("ann");
  update.add_facts()->mutable_worker_lost()->set_worker("w1");
  EXPECT_EQ(state.Validate(update).code(), Code::kFailedPrecondition);
}

TEST(ClusterState, ADrainedWorkerTakesNoNewAttempts) {
  TestCluster cluster;
  cluster.AddWorkers(1, 4);
  const std::string job = cluster.Submit();
  v1::DrainWorkerRequest drain;
  drain.set_request_id(cluster.Id());
  drain.set_worker("w1");
  drain.set_reason("new disk");
  ASSERT_EQ(cluster.Do<v1::DrainWorkerResponse>(drain).status(), absl::OkStatus());
  const auto launch = [&] {
    return cluster.Run(DecideLaunch(cluster.state(), job, {{"w1", {0, 1, 2, 3}}}, std::nullopt, "",
                                    cluster.caller()));
  };
  EXPECT_EQ(launch().code(), Code::kFailedPrecondition);
  v1::UncordonWorkerRequest uncordon;
  uncordon.set_request_id(cluster.Id());
  uncordon.set_worker("w1");
  ASSERT_EQ(cluster.Do<v1::UncordonWorkerResponse>(uncordon).status(), absl::OkStatus());
  EXPECT_EQ(launch(), absl::OkStatus());
  drain.set_request_id(cluster.Id());
  drain.set_worker("w9");
  EXPECT_EQ(cluster.Do<v1::DrainWorkerResponse>(drain).status().code(), Code::kNotFound);
}

TEST(ClusterState, AWorkerUndoesItsOwnDrainAndNobodyElses) {
  TestCluster cluster;
  cluster.AddWorkers(1, 4);
  const auto drain = [&](const std::string& author, bool cordon_only) {
    cluster.author = author;
    cluster.is_worker = author == "w1";
    v1::DrainWorkerRequest request;
    request.set_request_id(cluster.Id());
    request.set_worker("w1");
    request.set_reason(author + "'s reason");
    request.set_cordon_only(cordon_only);
    return cluster.Do<v1::DrainWorkerResponse>(request).status();
  };
  const auto uncordon = [&](const std::string& author) {
    cluster.author = author;
    cluster.is_worker = author == "w1";
    v1::UncordonWorkerRequest request;
    request.set_request_id(cluster.Id());
    request.set_worker("w1");
    return cluster.Do<v1::UncordonWorkerResponse>(request).status();
  };
  const auto worker = [&]() -> const v1::WorkerRecord& {
    return *cluster.state().FindWorker("w1");
  };
  ASSERT_EQ(drain("w1", false), absl::OkStatus());
  EXPECT_EQ(uncordon("w1"), absl::OkStatus());
  EXPECT_EQ(uncordon("w1"), absl::OkStatus());
  ASSERT_EQ(drain("ann", false), absl::OkStatus());
  EXPECT_EQ(uncordon("w1"),
            absl::PermissionDeniedError(
                "worker: ann took w1 out of service; allowed to change that: an operator"));
  // It drains already, and stays ann's.
  EXPECT_EQ(drain("w1", false), absl::OkStatus());
  EXPECT_EQ(worker().mode_author(), "ann");
  EXPECT_EQ(worker().mode_reason(), "ann's reason");
  EXPECT_EQ(uncordon("w1").code(), Code::kPermissionDenied);
  EXPECT_EQ(uncordon("bob"), absl::OkStatus());
  ASSERT_EQ(drain("ann", true), absl::OkStatus());
  EXPECT_EQ(drain("w1", false).code(), Code::kPermissionDenied);
  EXPECT_EQ(worker().mode(), v1::WORKER_MODE_CORDONED);
}

TEST(ClusterState, AQueueWithUnfinishedJobsCannotBeDeleted) {
  TestCluster cluster;
  v1::SetQueueRequest set;
  set.set_request_id(cluster.Id());
  set.mutable_queue()->set_name("research");
  set.mutable_queue()->set_quota_slots(8);
  ASSERT_EQ(cluster.Do<v1::SetQueueResponse>(set).status(), absl::OkStatus());
  v1::SubmitJobRequest submit;
  submit.set_request_id(cluster.Id());
  submit.set_spec_yaml(TestCluster::Spec("train", 4));
  submit.mutable_scheduling()->set_queue("research");
  ASSERT_EQ(cluster.Do<v1::SubmitJobResponse>(submit).status(), absl::OkStatus());
  v1::DeleteQueueRequest remove;
  remove.set_request_id(cluster.Id());
  remove.set_queue("research");
  remove.set_expected_revision(-1);
  EXPECT_EQ(cluster.Do<v1::DeleteQueueResponse>(remove).status().code(), Code::kFailedPrecondition);
  v1::KillJobRequest kill;
  kill.set_request_id(cluster.Id());
  kill.set_job("train-1");
  ASSERT_EQ(cluster.Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  EXPECT_EQ(cluster.Do<v1::DeleteQueueResponse>(remove).status(), absl::OkStatus());
  remove.set_request_id(cluster.Id());
  remove.set_queue("default");
  EXPECT_EQ(cluster.Do<v1::DeleteQueueResponse>(remove).status().code(), Code::kInvalidArgument);
}

TEST(ClusterState, AStaleRevisionOfAQueueIsRefused) {
  TestCluster cluster;
  v1::SetQueueRequest set;
  set.set_request_id(cluster.Id());
  set.mutable_queue()->set_name("default");
  set.mutable_queue()->set_quota_slots(8);
  set.set_expected_revision(0);
  EXPECT_EQ(cluster.Do<v1::SetQueueResponse>(set).status(),
            absl::FailedPreconditionError("expected_revision: 0 is not the queue's revision, 1"));
  set.set_expected_revision(1);
  EXPECT_EQ(cluster.Do<v1::SetQueueResponse>(set)->queue().revision(), 2);
}

TEST(ClusterState, AForgottenJobLeavesOnlyItsNumberReserved) {
  TestCluster cluster;
  cluster.AddWorkers(2, 2);
  const std::string job = cluster.Submit();
  ASSERT_EQ(cluster.Start(job), absl::OkStatus());
  ASSERT_EQ(cluster.Checkpoint(job, 10), absl::OkStatus());
  const auto forget = [&] {
    return cluster.Apply(
        cluster.Facts([&](v1::Fact& fact) { fact.mutable_job_forgotten()->set_job(job); }));
  };
  EXPECT_EQ(forget().code(), Code::kFailedPrecondition);
  ASSERT_EQ(cluster.ReportAll(job, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  ASSERT_EQ(forget(), absl::OkStatus());
  const Tables& tables = cluster.state().tables();
  EXPECT_TRUE(tables.jobs.empty() && tables.specs.empty() && tables.timelines.empty() &&
              tables.events.empty() && tables.checkpoints.empty() && tables.shards.empty());
  EXPECT_TRUE(cluster.state().index().ShardsOn("w1").empty());
  EXPECT_EQ(cluster.Submit(), "train-2");
}

TEST(ClusterState, ViewsShowTheSlotsInUse) {
  TestCluster cluster;
  cluster.AddWorkers(2, 3);
  const std::string job = cluster.Submit();
  v1::Job view = ViewJob(cluster.state(), cluster.Job(job), {}, "needs 4 slots; 3 free");
  EXPECT_EQ(view.state_reason(), "needs 4 slots; 3 free");
  EXPECT_EQ(view.checkpoint_step(), -1);
  ASSERT_EQ(cluster.Start(job), absl::OkStatus());
  EXPECT_EQ(ViewWorker(cluster.state(), *cluster.state().FindWorker("w1")).used_slots(), 3);
  EXPECT_EQ(ViewWorker(cluster.state(), *cluster.state().FindWorker("w2")).used_slots(), 1);
  EXPECT_EQ(ViewUsage(cluster.state(), "default").used_slots(), 4);
  view = ViewJob(cluster.state(), cluster.Job(job), {.attempt = 1, .next_step = 17}, "");
  EXPECT_EQ(view.state_reason(), "every rank runs");
  EXPECT_EQ(view.next_step(), 17);
}

TEST(Leases, AWorkerIsOverdueOnlyAfterItsLease) {
  Leases leases(10'000);
  leases.Hear("w1", 1, 0);
  leases.Hear("w2", 1, 5'000);
  EXPECT_TRUE(leases.Expired(10'000).empty());
  EXPECT_EQ(leases.NextExpiry(), 10'001);
  ASSERT_EQ(leases.Expired(10'001).size(), 1u);
  EXPECT_EQ(leases.Expired(10'001)[0].worker, "w1");
  leases.Hear("w1", 1, 10'001);
  EXPECT_TRUE(leases.Expired(10'001).empty());
}

TEST(Leases, AnOldIncarnationDoesNotKeepALeaseAlive) {
  Leases leases(10'000);
  leases.Hear("w1", 2, 0);
  leases.Hear("w1", 1, 9'000);
  EXPECT_EQ(leases.Expired(10'001).size(), 1u);
}

TEST(Leases, AfterARestartEveryPresentWorkerHasAFreshLease) {
  TestCluster cluster;
  cluster.AddWorkers(2, 1);
  ASSERT_EQ(cluster.Run(DecideWorkerLost(cluster.state(), "w2", 1, "silent", cluster.caller())),
            absl::OkStatus());
  Leases leases(10'000);
  leases.Restart(cluster.state(), 70'000);
  EXPECT_EQ(leases.LastHeard("w1"), 70'000);
  EXPECT_FALSE(leases.LastHeard("w2").has_value());
}

TEST(Cluster, AWorkerWithANewDiskAndAnEarlierClockReturnsOnceItsOldIncarnationIsLost) {
  TestCluster cluster;
  ASSERT_EQ(cluster.Register("w1", 1'700'000'000'000, 2), absl::OkStatus());
  EXPECT_EQ(cluster.Register("w1", 5, 2).code(), absl::StatusCode::kAborted);
  ASSERT_EQ(cluster.Run(DecideWorkerLost(cluster.state(), "w1", 1'700'000'000'000, "silent",
                                         cluster.caller())),
            absl::OkStatus());
  ASSERT_EQ(cluster.Register("w1", 5, 2), absl::OkStatus());
  EXPECT_TRUE(cluster.state().FindWorker("w1")->present());
  EXPECT_EQ(cluster.state().FindWorker("w1")->identity().incarnation(), 5);
}

}  // namespace
}  // namespace nibble
