// Lost and restored stores: epochs, and what a store adopts from its workers.
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state/decide.h"
#include "server/state/testing.h"
#include "server/state/workers.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

const std::string kId(32, 'a');
const std::string kOther(32, 'b');

v1::StoreIdentity Store(const std::string& id, int64_t epoch) {
  v1::StoreIdentity store;
  store.set_id(id);
  store.set_epoch(epoch);
  // The ids with which DecideStart begins epochs here.
  store.set_epoch_id(epoch == 1 ? kId : kOther);
  return store;
}

class OrphansTest : public ::testing::Test {
 protected:
  OrphansTest() {
    cluster_.AddWorkers(2, 4);
    // Gives the store an identity, as a store from before identities gets it.
    EXPECT_EQ(cluster_.Run(DecideStart(cluster_.state(), "test", {kId}, false, cluster_.caller())),
              absl::OkStatus());
  }
  int64_t epoch() const { return cluster_.state().store().epoch(); }
  void Restore() {
    EXPECT_EQ(cluster_.Run(DecideStart(cluster_.state(), "test", {kOther}, true, cluster_.caller())),
              absl::OkStatus());
  }

  // What w1 stores of a job, ordered by `store`.
  v1::Orphan Orphan(const std::string& job, int64_t attempt, const v1::StoreIdentity& store) {
    v1::Orphan orphan;
    orphan.set_job(job);
    *orphan.mutable_store() = store;
    orphan.set_spec_yaml(TestCluster::Spec("train", 2));
    orphan.set_attempt(attempt);
    orphan.set_owner("eve");
    return orphan;
  }
  static void AddShard(int64_t step, int32_t rank, v1::Orphan& orphan, int64_t attempt = 0,
                       uint32_t crc = 7) {
    v1::ShardReport& shard = *orphan.add_shards();
    shard.mutable_ref()->set_job(orphan.job());
    shard.mutable_ref()->set_step(step);
    shard.mutable_ref()->set_attempt(attempt == 0 ? orphan.attempt() : attempt);
    shard.set_rank(rank);
    shard.set_world(2);
    shard.set_bytes(1000);
    shard.set_manifest_crc32c(crc);
    *shard.mutable_store() = orphan.store();
  }
  absl::Status Recover(const std::string& job, const std::vector<OrphanEvidence>& evidence) {
    return cluster_.Run(DecideRecover(cluster_.state(), job, evidence, cluster_.caller()));
  }
  template <class Response, class Request, class... More>
  absl::StatusOr<Response> Ask(Request request, const More&... more) {
    if (request.request_id().empty()) request.set_request_id(cluster_.Id());
    auto decision = Decide(cluster_.state(), request, cluster_.caller(), more...);
    if (!decision.ok()) return decision.status();
    if (decision->update) {
      absl::Status status = cluster_.Apply(*decision->update);
      if (!status.ok()) return status;
    }
    return decision->response;
  }
  absl::StatusOr<v1::AdoptJobResponse> Adopt(const std::string& job,
                                             const std::vector<OrphanEvidence>& evidence,
                                             bool dry_run = false) {
    v1::AdoptJobRequest request;
    request.set_job(job);
    request.set_dry_run(dry_run);
    return Ask<v1::AdoptJobResponse>(request, Evidence(evidence));
  }
  std::vector<int64_t> Steps(const std::string& job) {
    std::vector<int64_t> steps;
    for (const v1::Checkpoint* checkpoint : cluster_.state().CheckpointsOf(job)) {
      if (checkpoint->state() == v1::CHECKPOINT_STATE_COMMITTED && !checkpoint->left()) {
        steps.push_back(checkpoint->ref().step());
      }
    }
    return steps;
  }

  TestCluster cluster_;
};

TEST_F(OrphansTest, OnlyUnknownDataOfThePresentEpochIsDropped) {
  v1::Orphan orphan = Orphan("train-9", 1, Store(kId, 1));
  AddShard(10, 0, orphan);
  std::vector<v1::ShardReport> held(orphan.shards().begin(), orphan.shards().end());
  EXPECT_EQ(DroppedShards(cluster_.state(), held).size(), 1u);
  for (const v1::StoreIdentity& other : {Store(kOther, 1), Store(kId, 2), v1::StoreIdentity()}) {
    *held[0].mutable_store() = other;
    EXPECT_TRUE(DroppedShards(cluster_.state(), held).empty()) << other.ShortDebugString();
  }
  *held[0].mutable_store() = Store(kId, 1);
  Restore();
  EXPECT_TRUE(DroppedShards(cluster_.state(), held).empty());
}

TEST_F(OrphansTest, ARestoredStoreAdoptsLaterAttemptsAndCompleteCheckpointsOfItsJobs) {
  const std::string job = cluster_.Submit(2);
  ASSERT_EQ(cluster_.Start(job), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job, 10), absl::OkStatus());
  Restore();
  v1::Orphan one = Orphan(job, 3, Store(kId, 1));
  v1::Orphan two = Orphan(job, 3, Store(kId, 1));
  AddShard(40, 0, one, 2);
  AddShard(40, 1, two, 2);
  AddShard(50, 0, one);
  AddShard(50, 1, one);
  AddShard(50, 1, two);
  AddShard(60, 1, two);  // its other shard is on no worker
  ASSERT_EQ(Recover(job, {{"w1", &one}, {"w2", &two}}), absl::OkStatus());
  const v1::JobRecord& record = cluster_.Job(job);
  EXPECT_FALSE(record.has_attempt());
  EXPECT_EQ(record.last_attempt(), 3);
  EXPECT_EQ(record.state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(record.restarts_without_progress(), 0);
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{10, 40, 50}));
  v1::CheckpointRef ref;
  ref.set_job(job);
  ref.set_step(50);
  ref.set_attempt(3);
  EXPECT_EQ(cluster_.state().FindShard(ref, 1)->holders_size(), 2);
  // The same evidence again changes nothing.
  const int64_t sequence = cluster_.state().sequence();
  ASSERT_EQ(Recover(job, {{"w1", &one}, {"w2", &two}}), absl::OkStatus());
  EXPECT_EQ(cluster_.state().sequence(), sequence);
  // The next attempt is a new one, and continues from the newest.
  ASSERT_EQ(cluster_.Start(job), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(job).attempt().number(), 4);
  EXPECT_EQ(cluster_.Job(job).attempt().resume().step(), 50);
}

TEST_F(OrphansTest, CheckpointsOfMoreRanksThanOneUpdateAdoptsAreAdoptedOneByOne) {
  constexpr int32_t kWorld = 16'385;
  const std::string job = cluster_.Submit(2);
  Restore();
  v1::Orphan orphan = Orphan(job, 3, Store(kId, 1));
  for (const int64_t step : {100, 200}) {
    for (int32_t rank = 0; rank < kWorld; ++rank) {
      AddShard(step, rank, orphan);
      orphan.mutable_shards()->rbegin()->set_world(kWorld);
    }
  }
  const std::vector<OrphanEvidence> evidence = {{"w1", &orphan}};
  ASSERT_EQ(Recover(job, evidence), absl::OkStatus());
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{100}));
  ASSERT_EQ(Recover(job, evidence), absl::OkStatus());
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{100, 200}));
  // As many at once by a person.
  const std::string lost = "lost-7";
  orphan.set_job(lost);
  for (v1::ShardReport& shard : *orphan.mutable_shards()) shard.mutable_ref()->set_job(lost);
  ASSERT_EQ(Adopt(lost, {{"w1", &orphan}}).status(), absl::OkStatus());
  EXPECT_EQ(Steps(lost), (std::vector<int64_t>{200}));
}

TEST_F(OrphansTest, ALiveAttemptIsReattachedWithTheTimelineOfItsRanks) {
  const std::string job = cluster_.Submit(2);
  ASSERT_EQ(cluster_.Start(job), absl::OkStatus());
  Restore();
  v1::Orphan orphan = Orphan(job, 1, Store(kId, 1));
  orphan.set_running(true);
  *orphan.mutable_revisions() = cluster_.state().FindTimeline(job)->revisions();
  v1::RecipeRevision& later = *orphan.add_revisions();
  later = orphan.revisions(0);
  later.set_number(2);
  later.set_first_step(30);
  later.set_confirmed(false);
  AddShard(10, 0, orphan);
  AddShard(10, 1, orphan);
  ASSERT_EQ(Recover(job, {{"w1", &orphan}}), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(job).attempt().number(), 1);
  EXPECT_EQ(cluster_.StateOf(job), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(cluster_.state().FindTimeline(job)->revisions_size(), 2);
  // Its checkpoint is whole: the end of the attempt cannot take it away.
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{10}));
  EXPECT_EQ(
      cluster_.Run(DecideShardReport(cluster_.state(), "w1", orphan.shards(0), cluster_.caller())),
      absl::OkStatus());
}

TEST_F(OrphansTest, ATimelineIsAdoptedFromRanksThatHaveEnded) {
  const std::string job = cluster_.Submit(2);
  ASSERT_EQ(cluster_.Start(job), absl::OkStatus());
  Restore();
  v1::Orphan orphan = Orphan(job, 1, Store(kId, 1));
  *orphan.mutable_revisions() = cluster_.state().FindTimeline(job)->revisions();
  v1::RecipeRevision& later = *orphan.add_revisions();
  later = orphan.revisions(0);
  later.set_number(2);
  later.set_first_step(30);
  later.set_confirmed(false);
  ASSERT_EQ(cluster_.Report(job, "w1", v1::RANK_PHASE_FAILED), absl::OkStatus());
  ASSERT_FALSE(cluster_.Job(job).has_attempt());
  ASSERT_EQ(Recover(job, {{"w1", &orphan}}), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(job).last_attempt(), 1);
  ASSERT_EQ(cluster_.state().FindTimeline(job)->revisions_size(), 2);
  EXPECT_EQ(cluster_.state().FindTimeline(job)->revisions(1).first_step(), 30);
  // The same evidence again changes nothing.
  const std::vector<OrphanEvidence> same = {{"w1", &orphan}};
  const MaybeUpdate again = DecideRecover(cluster_.state(), job, same, cluster_.caller());
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_FALSE(again->has_value());
}

TEST_F(OrphansTest, ACheckpointThatALaterAttemptDidNotResumeFromIsAbandoned) {
  const std::string job = cluster_.Submit(2);
  Restore();
  v1::Orphan orphan = Orphan(job, 2, Store(kId, 1));
  for (const int32_t rank : {0, 1}) {
    AddShard(100, rank, orphan, 1);
    AddShard(60, rank, orphan, 2);
  }
  ASSERT_EQ(Recover(job, {{"w1", &orphan}}), absl::OkStatus());
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{60}));
}

TEST_F(OrphansTest, ContradictoryShardsMakeNoCheckpoint) {
  const std::string job = cluster_.Submit(2);
  Restore();
  v1::Orphan one = Orphan(job, 1, Store(kId, 1));
  v1::Orphan two = Orphan(job, 1, Store(kId, 1));
  for (const int32_t rank : {0, 1}) AddShard(10, rank, one);
  AddShard(10, 1, two, 1, 8);
  ASSERT_EQ(Recover(job, {{"w1", &one}, {"w2", &two}}), absl::OkStatus());
  EXPECT_TRUE(Steps(job).empty());
  EXPECT_EQ(cluster_.Job(job).last_attempt(), 1);
}

TEST_F(OrphansTest, DataOfAnotherStoresJobWithTheSameIdIsNotAdopted) {
  const std::string job = cluster_.Submit(2);
  v1::Orphan orphan = Orphan(job, 4, Store(kOther, 1));
  for (const int32_t rank : {0, 1}) AddShard(10, rank, orphan);
  ASSERT_EQ(Recover(job, {{"w1", &orphan}}), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(job).last_attempt(), 0);
  EXPECT_TRUE(Steps(job).empty());
}

TEST_F(OrphansTest, AnAdoptedJobIsPausedWithItsCheckpointsAndContinues) {
  v1::Orphan orphan = Orphan("train-7", 2, Store(kOther, 3));
  for (const int32_t rank : {0, 1}) AddShard(20, rank, orphan);
  AddShard(30, 0, orphan);
  const std::vector<OrphanEvidence> evidence = {{"w1", &orphan}};
  const auto seen = Adopt("train-7", evidence, true);
  ASSERT_EQ(seen.status(), absl::OkStatus());
  EXPECT_EQ(seen->checkpoints(), 1);
  EXPECT_EQ(seen->incomplete(), 1);
  EXPECT_EQ(seen->job().checkpoint_step(), 20);
  EXPECT_EQ(cluster_.state().FindJob("train-7"), nullptr);

  ASSERT_EQ(Adopt("train-7", evidence).status(), absl::OkStatus());
  const v1::JobRecord job = cluster_.Job("train-7");
  EXPECT_EQ(job.state(), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(job.owner(), "eve");
  EXPECT_EQ(job.last_attempt(), 2);
  EXPECT_EQ(job.shape().steps(), 1000);
  EXPECT_EQ(Steps("train-7"), (std::vector<int64_t>{20}));
  // Shards that its ranks store later also count, although another store ordered them.
  AddShard(30, 1, orphan);
  ASSERT_EQ(Recover("train-7", evidence), absl::OkStatus());
  EXPECT_EQ(Steps("train-7"), (std::vector<int64_t>{20, 30}));

  v1::ResumeJobRequest resume;
  resume.set_job("train-7");
  ASSERT_EQ(Ask<v1::ResumeJobResponse>(resume).status(), absl::OkStatus());
  ASSERT_EQ(cluster_.Start("train-7"), absl::OkStatus());
  EXPECT_EQ(cluster_.Job("train-7").attempt().number(), 3);
  EXPECT_EQ(cluster_.Job("train-7").attempt().resume().step(), 30);
  // The state loads from the store.
  const auto loaded = Load(cluster_.store());
  ASSERT_EQ(loaded.status(), absl::OkStatus());
  EXPECT_EQ(loaded->FindJob("train-7")->number(), job.number());
}

TEST_F(OrphansTest, NewJobsDoNotGetTheIdsOfAdoptedJobsOrOrphans) {
  v1::Orphan orphan = Orphan("train-7", 2, Store(kOther, 3));
  AddShard(20, 0, orphan);
  ASSERT_EQ(Adopt("train-7", {{"w1", &orphan}}).status(), absl::OkStatus());
  EXPECT_EQ(cluster_.Submit(2), "train-9");
  v1::SubmitJobRequest request;
  request.set_request_id("request-taken");
  request.set_spec_yaml(TestCluster::Spec("train", 2));
  const std::set<std::string> taken = {"train-10", "train-11"};
  Caller caller = cluster_.caller();
  caller.taken_jobs = &taken;
  const auto decision = Decide(cluster_.state(), request, caller);
  ASSERT_EQ(decision.status(), absl::OkStatus());
  ASSERT_EQ(cluster_.Apply(*decision->update), absl::OkStatus());
  EXPECT_NE(cluster_.state().FindJob("train-12"), nullptr);
}

TEST_F(OrphansTest, AnAdoptionThatIsNotPossibleIsRefusedWithTheReason) {
  const std::string known = cluster_.Submit(2);
  v1::Orphan orphan = Orphan("train-7", 2, Store(kOther, 3));
  EXPECT_TRUE(absl::IsAlreadyExists(Adopt(known, {{"w1", &orphan}}).status()));
  EXPECT_TRUE(absl::IsNotFound(Adopt("train-7", {}).status()));
  v1::Orphan copies = orphan;
  copies.clear_spec_yaml();
  EXPECT_THAT(std::string(Adopt("train-7", {{"w1", &copies}}).status().message()),
              HasSubstr("has the spec of 'train-7'"));
  v1::Orphan third = orphan;
  *third.mutable_store() = Store(std::string(32, 'c'), 1);
  const absl::Status two = Adopt("train-7", {{"w1", &orphan}, {"w2", &third}}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(two)) << two;
  EXPECT_THAT(std::string(two.message()), HasSubstr("of 2 stores"));
}

TEST_F(OrphansTest, AnAdoptionIsCarriedOutOnce) {
  v1::Orphan orphan = Orphan("train-7", 2, Store(kOther, 3));
  const std::vector<OrphanEvidence> evidence = {{"w1", &orphan}};
  v1::AdoptJobRequest request;
  request.set_request_id("request-adopt");
  request.set_job("train-7");
  ASSERT_EQ(Ask<v1::AdoptJobResponse>(request, Evidence(evidence)).status(), absl::OkStatus());
  const auto again = Ask<v1::AdoptJobResponse>(request, Evidence(evidence));
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_EQ(again->job().id(), "train-7");
}

TEST_F(OrphansTest, AnOrphanIsRemovedByNameAfterTheGracePeriod) {
  v1::Orphan orphan = Orphan("train-7", 2, Store(kOther, 3));
  orphan.set_since_ms(59'000);
  const std::vector<OrphanEvidence> evidence = {{"w1", &orphan}};
  v1::RemoveOrphanRequest request;
  request.set_job("train-7");
  const auto early = Ask<v1::RemoveOrphanResponse>(request, Evidence(evidence), int64_t{60'000});
  EXPECT_TRUE(absl::IsFailedPrecondition(early.status()));
  EXPECT_THAT(std::string(early.status().message()), HasSubstr("after 60 s (--orphan-grace"));
  orphan.set_since_ms(60'000);
  request.set_worker("w2");
  EXPECT_TRUE(absl::IsNotFound(
      Ask<v1::RemoveOrphanResponse>(request, Evidence(evidence), int64_t{60'000}).status()));
  request.clear_worker();
  const auto removed = Ask<v1::RemoveOrphanResponse>(request, Evidence(evidence), int64_t{60'000});
  ASSERT_EQ(removed.status(), absl::OkStatus());
  EXPECT_EQ(removed->workers(), 1);
  ASSERT_EQ(cluster_.state().RemovalsOn("w1").size(), 1u);
  EXPECT_EQ(cluster_.state().RemovalsOn("w1")[0]->store().id(), kOther);
  EXPECT_TRUE(DescribeOrphan(cluster_.state(), "train-7", evidence).holdings(0).removal_ordered());
  // The order stays until the worker has deleted everything.
  EXPECT_EQ(
      cluster_.Run(DecideRemovalsDone(cluster_.state(), "w1", {"train-7"}, cluster_.caller())),
      absl::OkStatus());
  EXPECT_EQ(cluster_.state().RemovalsOn("w1").size(), 1u);
  EXPECT_EQ(cluster_.Run(DecideRemovalsDone(cluster_.state(), "w1", {}, cluster_.caller())),
            absl::OkStatus());
  EXPECT_TRUE(cluster_.state().RemovalsOn("w1").empty());
}

TEST_F(OrphansTest, KnownAndAdoptedJobsCannotBeRemovedAsOrphans) {
  const std::string known = cluster_.Submit(2);
  v1::Orphan orphan = Orphan("train-7", 2, Store(kOther, 3));
  const std::vector<OrphanEvidence> evidence = {{"w1", &orphan}};
  v1::RemoveOrphanRequest request;
  request.set_job(known);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      Ask<v1::RemoveOrphanResponse>(request, Evidence(evidence), int64_t{0}).status()));
  request.set_job("train-7");
  ASSERT_EQ(Ask<v1::RemoveOrphanResponse>(request, Evidence(evidence), int64_t{0}).status(),
            absl::OkStatus());
  ASSERT_EQ(Adopt("train-7", evidence).status(), absl::OkStatus());
  EXPECT_TRUE(cluster_.state().RemovalsOn("w1").empty());
}

}  // namespace
}  // namespace nibble
