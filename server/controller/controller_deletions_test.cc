// Deletions across reports, ticks and answers: orders to delete shards, what workers keep in their
// trash, and the restoration of a checkpoint.
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/controller.h"
#include "server/controller/testing.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// A job with one rank runs on w1, which moves what it is ordered to drop to its trash.
class ControllerDeletionsTest : public testing::Test {
 protected:
  ControllerDeletionsTest() {
    job_ = worker_.RunJob(1, 1);
    worker_.report.set_all_shards(true);
  }

  v1::CheckpointRef Ref(int64_t step) const {
    v1::CheckpointRef ref;
    ref.set_job(job_);
    ref.set_step(step);
    ref.set_attempt(1);
    return ref;
  }
  void Report() { ASSERT_EQ(worker_.Report(), absl::OkStatus()); }
  // Carries out the orders to drop and to restore.
  void Obey() {
    for (const v1::DroppedShard& order : worker_.desired.dropped()) {
      auto& shards = *worker_.report.mutable_shards();
      for (auto at = shards.begin(); at != shards.end(); ++at) {
        if (at->ref().step() != order.ref().step()) continue;
        v1::TrashedShard& trashed = *worker_.report.add_trash();
        *trashed.mutable_ref() = at->ref();
        trashed.set_rank(at->rank());
        trashed.set_world(at->world());
        trashed.set_bytes(at->bytes());
        trashed.set_manifest_crc32c(at->manifest_crc32c());
        trashed.set_kind(order.kind());
        trashed.set_reason(order.reason());
        shards.erase(at);
        break;
      }
    }
    for (const v1::TrashOrder& order : worker_.desired.restores()) {
      auto& trash = *worker_.report.mutable_trash();
      for (auto at = trash.begin(); at != trash.end(); ++at) {
        if (at->ref().step() != order.ref().step()) continue;
        v1::ShardReport& shard = *worker_.report.add_shards();
        *shard.mutable_ref() = at->ref();
        shard.set_rank(at->rank());
        shard.set_world(at->world());
        shard.set_bytes(at->bytes());
        shard.set_manifest_crc32c(at->manifest_crc32c());
        trash.erase(at);
        break;
      }
    }
    worker_.report.set_desired_number(worker_.desired.number());
    Report();
  }
  void Delete(int64_t step) {
    v1::DeleteCheckpointRequest request;
    *request.mutable_ref() = Ref(step);
    request.set_reason("by mistake");
    ASSERT_EQ(coordinator_.Do<v1::DeleteCheckpointResponse>(request).status(), absl::OkStatus());
  }
  absl::Status Restore(int64_t step) {
    v1::RestoreCheckpointRequest request;
    *request.mutable_ref() = Ref(step);
    return coordinator_.Do<v1::RestoreCheckpointResponse>(request).status();
  }
  std::vector<int64_t> Steps() {
    v1::ListCheckpointsRequest request;
    request.set_job(job_);
    const auto response = coordinator_.controller().Read(request);
    EXPECT_EQ(response.status(), absl::OkStatus());
    std::vector<int64_t> steps;
    for (const v1::Checkpoint& one : response->checkpoints()) steps.push_back(one.ref().step());
    return steps;
  }
  v1::ListTrashResponse Trash(int32_t size = 0, const std::string& token = "") {
    v1::ListTrashRequest request;
    request.mutable_page()->set_size(size);
    request.mutable_page()->set_token(token);
    const auto response = coordinator_.controller().Read(request);
    EXPECT_EQ(response.status(), absl::OkStatus());
    return *response;
  }
  v1::ListDeletionsResponse Deletions(int32_t size = 0, const std::string& token = "") {
    v1::ListDeletionsRequest request;
    request.set_job(job_);
    request.mutable_page()->set_size(size);
    request.mutable_page()->set_token(token);
    const auto response = coordinator_.controller().Read(request);
    EXPECT_EQ(response.status(), absl::OkStatus());
    return *response;
  }

  TestCoordinator coordinator_;
  TestWorker worker_{coordinator_, "w1", 1};
  std::string job_;
};

TEST_F(ControllerDeletionsTest, ADeletedCheckpointOfARunningJobIsRestoredFromTheTrash) {
  for (const int64_t step : {10, 20}) worker_.Store(step);
  Delete(10);
  Report();
  ASSERT_THAT(worker_.desired.dropped(), SizeIs(1));
  EXPECT_EQ(worker_.desired.dropped(0).ref().step(), 10);
  EXPECT_EQ(worker_.desired.dropped(0).kind(), v1::DELETION_KIND_REQUESTED);
  EXPECT_EQ(worker_.desired.dropped(0).reason(), "by mistake");
  EXPECT_GT(worker_.desired.dropped(0).order().sequence(), 0);
  // While it is neither stored nor known to be in the trash, nobody has it.
  EXPECT_EQ(Restore(10).code(), absl::StatusCode::kNotFound);
  Obey();
  ASSERT_THAT(Trash().checkpoints(), SizeIs(1));
  const v1::TrashedCheckpoint trashed = Trash().checkpoints(0);
  EXPECT_EQ(trashed.ref().step(), 10);
  EXPECT_EQ(trashed.world(), 1);
  EXPECT_EQ(trashed.present_shards(), 1);
  EXPECT_EQ(trashed.bytes(), 1000);
  ASSERT_THAT(trashed.holdings(), SizeIs(1));
  EXPECT_EQ(trashed.holdings(0).worker(), "w1");
  EXPECT_FALSE(trashed.restore_ordered());
  v1::DescribeWorkerRequest describe;
  describe.set_worker("w1");
  EXPECT_EQ(coordinator_.controller().Read(describe)->worker().trash_bytes(), 1000);
  EXPECT_THAT(Deletions().deletions(), SizeIs(1));
  EXPECT_THAT(worker_.desired.restores(), IsEmpty());

  ASSERT_EQ(Restore(10), absl::OkStatus());
  EXPECT_TRUE(Trash().checkpoints(0).restore_ordered());
  Report();
  ASSERT_THAT(worker_.desired.restores(), SizeIs(1));
  EXPECT_EQ(worker_.desired.restores(0).ref().step(), 10);
  EXPECT_THAT(Steps(), ElementsAre(20));
  Obey();
  EXPECT_THAT(Steps(), ElementsAre(20, 10));
  EXPECT_THAT(Deletions().deletions(), IsEmpty());
  EXPECT_THAT(worker_.desired.dropped(), IsEmpty());
  EXPECT_THAT(worker_.desired.restores(), IsEmpty());
  EXPECT_EQ(Restore(10).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ControllerDeletionsTest, TheTrashIsListedByJobNewestFirstInPages) {
  for (const int64_t step : {10, 20, 30}) worker_.Store(step);
  for (const int64_t step : {10, 20}) Delete(step);
  Report();
  Obey();
  v1::TrashedShard& foreign = *worker_.report.add_trash();
  foreign.mutable_ref()->set_job("another-7");
  foreign.mutable_ref()->set_step(5);
  foreign.mutable_ref()->set_attempt(1);
  foreign.set_world(1);
  Report();
  std::vector<std::string> listed;
  std::string token;
  do {
    const v1::ListTrashResponse page = Trash(1, token);
    ASSERT_THAT(page.checkpoints(), SizeIs(1));
    listed.push_back(page.checkpoints(0).ref().job() + "@" +
                     std::to_string(page.checkpoints(0).ref().step()));
    token = page.next_token();
  } while (!token.empty());
  EXPECT_THAT(listed, ElementsAre("another-7@5", job_ + "@20", job_ + "@10"));
  std::vector<int64_t> steps;
  do {
    const v1::ListDeletionsResponse page = Deletions(1, token);
    ASSERT_THAT(page.deletions(), SizeIs(1));
    steps.push_back(page.deletions(0).ref().step());
    token = page.next_token();
  } while (!token.empty());
  EXPECT_THAT(steps, ElementsAre(20, 10));
  // A caller of another project sees neither its trash nor that of jobs that nobody knows.
  v1::ListTrashRequest request;
  const ProjectView other({"other"});
  EXPECT_THAT(coordinator_.controller().Read(request, other)->checkpoints(), IsEmpty());
  request.set_job(job_);
  EXPECT_EQ(coordinator_.controller().Read(request, other).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(coordinator_.controller().Read(request)->checkpoints(), SizeIs(2));
  request.set_job("another-7");
  EXPECT_EQ(coordinator_.controller().Read(request).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ControllerDeletionsTest, NoOrderToDropIsMadeBeforeTheFirstReportOfAStreamIsDurable) {
  for (const int64_t step : {10, 20}) worker_.Store(step);
  Delete(10);
  // Another worker, whose registration waits for the disk, has a copy of the deleted shard.
  auto session = coordinator_.controller().sessions().Open(nullptr);
  ASSERT_EQ(session.status(), absl::OkStatus());
  v1::ConnectRequest report = worker_.report;
  report.clear_gangs();
  report.mutable_identity()->set_name("w9");
  report.set_number(1);
  coordinator_.store().Hold();
  absl::Status taken = absl::UnknownError("not answered");
  coordinator_.controller().reports().Take(*session, report,
                                           [&taken](const absl::Status& done) { taken = done; });
  v1::ConnectResponse desired = coordinator_.controller().reports().Desired(*session);
  EXPECT_EQ(desired.answered(), 0);
  EXPECT_THAT(desired.dropped(), IsEmpty());
  coordinator_.store().Release();
  coordinator_.controller().Settle();
  ASSERT_EQ(taken, absl::OkStatus());
  desired = coordinator_.controller().reports().Desired(*session);
  EXPECT_EQ(desired.answered(), 1);
  EXPECT_THAT(desired.dropped(), SizeIs(1));
  coordinator_.controller().sessions().Close(*session);
}

TEST_F(ControllerDeletionsTest, WhatAnotherStoreOrderedIsNotDropped) {
  for (const int64_t step : {10, 20}) worker_.Store(step);
  Delete(10);
  for (v1::ShardReport& shard : *worker_.report.mutable_shards()) {
    shard.mutable_store()->set_id(std::string(32, 'f'));
    shard.mutable_store()->set_epoch(1);
  }
  Report();
  EXPECT_THAT(worker_.desired.dropped(), IsEmpty());
}

TEST_F(ControllerDeletionsTest, RetentionGoesOnWhenTheWorkerOfTheNewestCheckpointIsBack) {
  for (const int64_t step : {10, 20, 30}) worker_.Store(step);
  coordinator_.clock.Advance(11'000);  // its lease ends before retention has its turn
  coordinator_.Tick();
  EXPECT_THAT(Steps(), ElementsAre(30, 20, 10));
  Report();
  coordinator_.Tick();
  EXPECT_THAT(Steps(), ElementsAre(30, 20));
  EXPECT_EQ(Deletions().deletions(0).kind(), v1::DELETION_KIND_RETENTION);
  EXPECT_EQ(Deletions().deletions(0).author(), "coordinator");
  Report();
  ASSERT_THAT(worker_.desired.dropped(), SizeIs(1));
  EXPECT_EQ(worker_.desired.dropped(0).kind(), v1::DELETION_KIND_RETENTION);
}

}  // namespace
}  // namespace nibble
