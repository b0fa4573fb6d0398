// Checkpoints: atomic commits, pins, deletion, holders, tasks.
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "server/state/desired.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

using Code = absl::StatusCode;

class CatalogueTest : public testing::Test {
 protected:
  CatalogueTest() {
    cluster_.AddWorkers(3, 2);
    job_ = cluster_.Submit();
    EXPECT_EQ(cluster_.Start(job_), absl::OkStatus());
  }
  v1::CheckpointRef Ref(int64_t step) const {
    v1::CheckpointRef ref;
    ref.set_job(job_);
    ref.set_step(step);
    ref.set_attempt(1);
    return ref;
  }
  template <class Response, class Request>
  absl::Status Ask(int64_t step) {
    Request request;
    request.set_request_id(cluster_.Id());
    request.mutable_ref()->set_job(job_);
    request.mutable_ref()->set_step(step);
    return cluster_.Do<Response>(request).status();
  }
  absl::Status Pin(int64_t step) {
    return Ask<v1::PinCheckpointResponse, v1::PinCheckpointRequest>(step);
  }
  absl::Status Unpin(int64_t step) {
    return Ask<v1::UnpinCheckpointResponse, v1::UnpinCheckpointRequest>(step);
  }
  absl::Status Delete(int64_t step) {
    return Ask<v1::DeleteCheckpointResponse, v1::DeleteCheckpointRequest>(step);
  }

  TestCluster cluster_;
  std::string job_;
};

TEST_F(CatalogueTest, AGangThatResumesIsToldOfEveryShardAndWhoIsPresentAndHasIt) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  const auto copy = [this](int32_t rank) {
    v1::ShardReport report;
    *report.mutable_ref() = Ref(10);
    report.set_rank(rank);
    report.set_world(4);
    report.set_bytes(1000);
    report.set_manifest_crc32c(cluster_.state().FindShard(Ref(10), rank)->manifest_crc32c());
    return cluster_.Run(DecideShardReport(cluster_.state(), "w3", report, cluster_.caller()));
  };
  // A copy of rank 0's on w3; then w1, which has the first, is lost.
  ASSERT_EQ(copy(0), absl::OkStatus());
  ASSERT_EQ(cluster_.Run(DecideWorkerLost(cluster_.state(), "w1", 1, "gone", cluster_.caller())),
            absl::OkStatus());
  const auto shards = ShardSources(cluster_.state(), Ref(10));
  ASSERT_EQ(shards.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(shards[static_cast<size_t>(rank)].rank(), rank);
    EXPECT_EQ(shards[static_cast<size_t>(rank)].manifest_crc32c(),
              cluster_.state().FindShard(Ref(10), rank)->manifest_crc32c());
  }
  const auto address = [this](const std::string& worker) {
    return cluster_.state().FindWorker(worker)->identity().address();
  };
  ASSERT_EQ(shards[0].sources_size(), 1);
  EXPECT_EQ(shards[0].sources(0), address("w3"));
  EXPECT_EQ(shards[1].sources_size(), 0);
  ASSERT_EQ(shards[2].sources_size(), 1);
  EXPECT_EQ(shards[2].sources(0), address("w2"));

  ASSERT_EQ(copy(1), absl::OkStatus());
  cluster_.now_ms += 3'600'000;
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  const auto gangs = DesiredGangs(cluster_.state(), "w2", 1);
  ASSERT_EQ(gangs.size(), 1u);
  EXPECT_EQ(gangs[0].resume_shards_size(), 4);
}

TEST_F(CatalogueTest, ACheckpointExistsWhenEveryShardIsDurableAndNotBefore) {
  for (int32_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(cluster_.Shard(job_, 10, rank), absl::OkStatus());
    EXPECT_EQ(cluster_.state().NewestGood(job_), nullptr);
    EXPECT_EQ(Pin(10).code(), Code::kNotFound);
  }
  ASSERT_EQ(cluster_.Shard(job_, 10, 3), absl::OkStatus());
  const v1::Checkpoint* const checkpoint = cluster_.state().NewestGood(job_);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->bytes(), 4000);
  EXPECT_EQ(cluster_.Job(job_).attempt().checkpoints(), 1);
}

TEST_F(CatalogueTest, AShardToldTwiceCountsOnce) {
  ASSERT_EQ(cluster_.Shard(job_, 10, 0), absl::OkStatus());
  const int64_t before = cluster_.state().sequence();
  ASSERT_EQ(cluster_.Shard(job_, 10, 0), absl::OkStatus());
  EXPECT_EQ(cluster_.state().sequence(), before);
  EXPECT_EQ(cluster_.state().FindCheckpoint(Ref(10))->durable_shards(), 1);
}

TEST_F(CatalogueTest, AShardThatDiffersFromWhatWasToldIsRefused) {
  ASSERT_EQ(cluster_.Shard(job_, 10, 0), absl::OkStatus());
  v1::ShardReport report;
  *report.mutable_ref() = Ref(10);
  report.set_world(4);
  report.set_bytes(1000);
  report.set_manifest_crc32c(99);
  EXPECT_EQ(
      cluster_.Run(DecideShardReport(cluster_.state(), "w1", report, cluster_.caller())).code(),
      Code::kFailedPrecondition);
  report.set_rank(4);
  EXPECT_EQ(
      cluster_.Run(DecideShardReport(cluster_.state(), "w1", report, cluster_.caller())).code(),
      Code::kInvalidArgument);
  report.set_rank(1);
  report.set_world(2);
  EXPECT_EQ(
      cluster_.Run(DecideShardReport(cluster_.state(), "w1", report, cluster_.caller())).code(),
      Code::kInvalidArgument);
}

TEST_F(CatalogueTest, APinnedCheckpointStays) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 20), absl::OkStatus());
  ASSERT_EQ(Pin(10), absl::OkStatus());
  const absl::Status refused = Delete(10);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "pinned by ann")) << refused;
  ASSERT_EQ(Unpin(10), absl::OkStatus());
  EXPECT_EQ(Unpin(10).code(), Code::kNotFound);
  ASSERT_EQ(Delete(10), absl::OkStatus());
  EXPECT_EQ(cluster_.state().FindCheckpoint(Ref(10)), nullptr);
  EXPECT_TRUE(cluster_.state().ShardsOf(Ref(10)).empty());
}

TEST_F(CatalogueTest, WhatAJobWouldRestartFromIsNotDeleted) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  EXPECT_EQ(Delete(10).code(), Code::kFailedPrecondition);
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  EXPECT_EQ(Delete(10), absl::OkStatus());
}

TEST_F(CatalogueTest, WorkersAreToldToDropWhatNoLongerExists) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 20), absl::OkStatus());
  v1::ShardReport ten;
  *ten.mutable_ref() = Ref(10);
  v1::ShardReport twenty;
  *twenty.mutable_ref() = Ref(20);
  v1::ShardReport stranger;
  stranger.mutable_ref()->set_job("other-7");
  EXPECT_EQ(DroppedShards(cluster_.state(), {ten, twenty, stranger}).size(), 1u);
  // A live attempt may yet tell of shards; those of a finished job's deleted checkpoint are litter.
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  ASSERT_EQ(Delete(10), absl::OkStatus());
  const auto dropped = DroppedShards(cluster_.state(), {ten, twenty});
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].ref().step(), 10);
}

TEST_F(CatalogueTest, ACopyMakesAHolderAndAnInventoryTakesItBack) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  v1::ShardReport copy;
  *copy.mutable_ref() = Ref(10);
  copy.set_world(4);
  copy.set_bytes(1000);
  copy.set_manifest_crc32c(1);
  ASSERT_EQ(cluster_.Run(DecideShardReport(cluster_.state(), "w3", copy, cluster_.caller())),
            absl::OkStatus());
  EXPECT_EQ(cluster_.state().FindShard(Ref(10), 0)->holders_size(), 2);
  ASSERT_EQ(cluster_.Run(DecideWorkerLost(cluster_.state(), "w1", 1, "silent", cluster_.caller())),
            absl::OkStatus());
  EXPECT_TRUE(LoadableCheckpoints(cluster_.state(), cluster_.Job(job_)).empty());
  ASSERT_EQ(cluster_.Run(DecideShardInventory(cluster_.state(), "w3", {}, cluster_.caller())),
            absl::OkStatus());
  EXPECT_EQ(cluster_.state().FindShard(Ref(10), 0)->holders_size(), 1);
}

TEST_F(CatalogueTest, ATaskEndsOnce) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  v1::ExportCheckpointRequest request;
  request.set_request_id(cluster_.Id());
  *request.mutable_ref() = Ref(10);
  request.set_destination("out");
  EXPECT_EQ(cluster_.Do<v1::ExportCheckpointResponse>(request).status().code(),
            Code::kInvalidArgument);
  request.set_destination("/out");
  const auto response = cluster_.Do<v1::ExportCheckpointResponse>(request);
  ASSERT_EQ(response.status(), absl::OkStatus());
  EXPECT_EQ(response->task(), 1);
  v1::TaskReport report;
  *report.mutable_ref() = Ref(10);
  report.set_task(1);
  report.set_state(v1::CHECKPOINT_TASK_STATE_DONE);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cluster_.Run(DecideTaskReport(cluster_.state(), "w1", report, cluster_.caller())),
              absl::OkStatus());
    EXPECT_EQ(cluster_.state().FindCheckpoint(Ref(10))->tasks(0).state(),
              v1::CHECKPOINT_TASK_STATE_DONE);
    report.set_state(v1::CHECKPOINT_TASK_STATE_FAILED);
  }
  report.set_task(2);
  EXPECT_EQ(
      cluster_.Run(DecideTaskReport(cluster_.state(), "w1", report, cluster_.caller())).code(),
      Code::kNotFound);
}

TEST_F(CatalogueTest, AJobKeepsItsNewestEventsAndSaysHowManyItDropped) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  for (int i = 0; i < 150; ++i) {
    ASSERT_EQ(Pin(10), absl::OkStatus());
    ASSERT_EQ(Unpin(10), absl::OkStatus());
  }
  const auto events = cluster_.state().EventsOf(job_);
  EXPECT_EQ(events.size(), 200u);
  EXPECT_EQ(events.front()->number(), cluster_.Job(job_).first_event());
  EXPECT_EQ(events.back()->number(), cluster_.Job(job_).next_event() - 1);
  EXPECT_GT(cluster_.Job(job_).first_event(), 100);
}

}  // namespace
}  // namespace nibble
