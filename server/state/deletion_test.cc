// Deletions of checkpoints: their records, what retention may delete, which shards workers are
// ordered to delete, and the restoration of a deleted checkpoint.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/store_identity.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/testing.h"
#include "server/state/workers.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// A job whose two ranks run on w1, in epoch 1.
class DeletionTest : public testing::Test {
 protected:
  DeletionTest() {
    BeginEpoch(1);
    cluster_.AddWorkers(2, 2);
    job_ = cluster_.Submit(2);
    EXPECT_EQ(cluster_.Start(job_), absl::OkStatus());
  }

  const State& state() const { return cluster_.state(); }
  template <class Fill>
  absl::Status ApplyFact(Fill fill) {
    return cluster_.Apply(cluster_.Facts(fill));
  }
  void BeginEpoch(int64_t epoch) {
    ASSERT_EQ(ApplyFact([&](v1::Fact& fact) {
                v1::StoreRestored& restored = *fact.mutable_store_restored();
                restored.set_store_id(std::string(32, 'a'));
                restored.set_epoch(epoch);
                restored.set_epoch_id(std::string(32, static_cast<char>('0' + epoch)));
              }),
              absl::OkStatus());
  }
  v1::CheckpointRef Ref(int64_t step, int64_t attempt = 1) const {
    v1::CheckpointRef ref;
    ref.set_job(job_);
    ref.set_step(step);
    ref.set_attempt(attempt);
    return ref;
  }
  void Commit(const std::vector<int64_t>& steps) {
    for (const int64_t step : steps) ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
  }
  absl::Status Delete(int64_t step, v1::DeletionKind kind) {
    return ApplyFact([&](v1::Fact& fact) {
      v1::CheckpointDeleted& deleted = *fact.mutable_checkpoint_deleted();
      *deleted.mutable_ref() = Ref(step);
      deleted.set_kind(kind);
      deleted.set_reason("why not");
    });
  }
  // w1 is lost, and with it the attempt.
  void LoseW1() {
    ASSERT_EQ(cluster_.Run(DecideWorkerLost(state(), "w1", 1, "gone", cluster_.caller())),
              absl::OkStatus());
  }
  void EndAttempt() {
    ASSERT_EQ(cluster_.Run(DecideAttemptFailed(state(), job_, 1, v1::ATTEMPT_OUTCOME_FAILED, "",
                                               "it stopped", cluster_.caller())),
              absl::OkStatus());
  }

  v1::ShardReport Shard(int64_t step, int32_t rank = 0, uint32_t crc = 7) const {
    v1::ShardReport shard;
    *shard.mutable_ref() = Ref(step);
    shard.set_rank(rank);
    shard.set_world(2);
    shard.set_bytes(1000);
    shard.set_manifest_crc32c(crc);
    *shard.mutable_store() = EpochOf(state().store());
    return shard;
  }
  std::vector<v1::DroppedShard> Dropped(const v1::ShardReport& shard) const {
    return DroppedShards(state(), {&shard, 1});
  }

  absl::StatusOr<v1::CheckpointRef> Restore(const v1::CheckpointRef& ref, LooseShards shards) {
    v1::RestoreCheckpointRequest request;
    request.set_request_id(cluster_.Id());
    *request.mutable_ref() = ref;
    request.set_reason("a mistake");
    auto decision = Decide(state(), request, cluster_.caller(), shards);
    NIBBLE_RETURN_IF_ERROR(decision.status());
    NIBBLE_RETURN_IF_ERROR(cluster_.Apply(*decision->update));
    return decision->response.ref();
  }
  LooseShard Trash(const std::string& worker, int64_t step, int32_t rank, uint32_t crc = 7) const {
    return {.worker = worker, .shard = Shard(step, rank, crc), .trashed = true};
  }
  LooseShard Stored(const std::string& worker, int64_t step, int32_t rank, uint32_t crc = 7) const {
    return {.worker = worker, .shard = Shard(step, rank, crc)};
  }
  absl::Status TakeRestored(LooseShards shards) {
    return cluster_.Run(DecideRestored(state(), job_, shards, cluster_.caller()));
  }

  TestCluster cluster_;
  std::string job_;
};

TEST_F(DeletionTest, ADeletionIsRecordedWithWhoWhyAndTheUpdate) {
  Commit({10, 20});
  v1::DeleteCheckpointRequest request;
  request.set_request_id(cluster_.Id());
  *request.mutable_ref() = Ref(10);
  request.set_reason("not needed");
  const v1::Checkpoint deleted = *state().FindCheckpoint(Ref(10));
  ASSERT_EQ(cluster_.Do<v1::DeleteCheckpointResponse>(request).status(), absl::OkStatus());
  const v1::CheckpointDeletion* const record = state().FindDeletion(Ref(10));
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->kind(), v1::DELETION_KIND_REQUESTED);
  EXPECT_EQ(record->reason(), "not needed");
  EXPECT_EQ(record->author(), "ann");
  EXPECT_EQ(record->time_unix_ms(), cluster_.now_ms);
  EXPECT_TRUE(SameEpoch(record->order(), state().store()));
  EXPECT_EQ(record->order().sequence(), state().sequence());
  EXPECT_EQ(record->world(), 2);
  EXPECT_EQ(record->bytes(), deleted.bytes());
  EXPECT_GT(record->bytes(), 0);
  EXPECT_THAT(record->holders(), ElementsAre("w1"));
  EXPECT_FALSE(record->restore_ordered());
}

TEST_F(DeletionTest, AnUnfinishedCheckpointIsRecordedWhenItsAttemptEnds) {
  Commit({10});
  ASSERT_EQ(cluster_.Shard(job_, 20, 1), absl::OkStatus());
  EndAttempt();
  ASSERT_THAT(state().DeletionsOf(job_), SizeIs(1));
  const v1::CheckpointDeletion& record = *state().DeletionsOf(job_)[0];
  EXPECT_EQ(record.ref().step(), 20);
  EXPECT_EQ(record.kind(), v1::DELETION_KIND_NOT_COMMITTED);
  EXPECT_EQ(record.reason(), "attempt 1 ended before it was committed");
  EXPECT_EQ(record.order().sequence(), state().sequence());
  EXPECT_THAT(record.holders(), ElementsAre("w1"));
  EXPECT_THAT(state().ShardsOf(Ref(20)), IsEmpty());
}

TEST_F(DeletionTest, OfTooManyRecordsThoseOfTheOldestStepsLeave) {
  for (int64_t step = 1; step <= kMaxDeletionsPerJob + 2; ++step) {
    ASSERT_EQ(cluster_.Shard(job_, step, 0), absl::OkStatus());
  }
  ASSERT_EQ(
      Restore(Ref(999), std::vector<LooseShard>{Trash("w2", 999, 0), Trash("w2", 999, 1)}).status(),
      absl::OkStatus());
  EndAttempt();
  EXPECT_THAT(state().DeletionsOf(job_), SizeIs(kMaxDeletionsPerJob));
  EXPECT_EQ(state().FindDeletion(Ref(3)), nullptr);
  EXPECT_NE(state().FindDeletion(Ref(4)), nullptr);
}

TEST_F(DeletionTest, ARecordOfARestorationStaysLongest) {
  ASSERT_EQ(Restore(Ref(1), std::vector<LooseShard>{Trash("w2", 1, 0), Trash("w2", 1, 1)}).status(),
            absl::OkStatus());
  for (int64_t step = 2; step <= kMaxDeletionsPerJob + 1; ++step) {
    ASSERT_EQ(cluster_.Shard(job_, step, 0), absl::OkStatus());
  }
  EndAttempt();
  EXPECT_NE(state().FindDeletion(Ref(1)), nullptr);
  EXPECT_EQ(state().FindDeletion(Ref(2)), nullptr);
}

TEST_F(DeletionTest, AForgottenJobHasNoRecords) {
  Commit({10, 20});
  ASSERT_EQ(Delete(10, v1::DELETION_KIND_REQUESTED), absl::OkStatus());
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  ASSERT_EQ(ApplyFact([&](v1::Fact& fact) { fact.mutable_job_forgotten()->set_job(job_); }),
            absl::OkStatus());
  EXPECT_THAT(state().DeletionsOf(job_), IsEmpty());
  EXPECT_EQ(Load(cluster_.store()).status(), absl::OkStatus());
}

TEST_F(DeletionTest, ARecordWithoutItsJobIsNoState) {
  Commit({10, 20});
  ASSERT_EQ(Delete(10, v1::DELETION_KIND_REQUESTED), absl::OkStatus());
  StateLoader loader;
  for (const auto& [key, value] : cluster_.store()) {
    const auto kind = static_cast<v1::EntityKind>(key.first);
    if (kind == v1::ENTITY_KIND_JOB || kind == v1::ENTITY_KIND_CHECKPOINT) continue;
    ASSERT_EQ(loader.Add(kind, key.second, value), absl::OkStatus());
  }
  EXPECT_EQ(loader.Finish().status().code(), absl::StatusCode::kDataLoss);
}

// Retention.

TEST_F(DeletionTest, ACommitIsOfTheEpochInWhichItHappened) {
  Commit({10});
  BeginEpoch(2);
  Commit({20});
  EXPECT_EQ(state().FindCheckpoint(Ref(10))->epoch_id(), std::string(32, '1'));
  EXPECT_EQ(state().FindCheckpoint(Ref(20))->epoch_id(), std::string(32, '2'));
}

TEST_F(DeletionTest, RetentionDeletesWhatIsOlderThanAWholeCheckpoint) {
  Commit({10, 20});
  EXPECT_EQ(state().NewestWhole(job_)->ref().step(), 20);
  EXPECT_EQ(Delete(10, v1::DELETION_KIND_RETENTION), absl::OkStatus());
}

TEST_F(DeletionTest, RetentionNeedsANewerCheckpointOfThisEpoch) {
  Commit({10, 20});
  BeginEpoch(2);
  EXPECT_EQ(Delete(10, v1::DELETION_KIND_RETENTION).code(), absl::StatusCode::kFailedPrecondition);
  Commit({30});
  EXPECT_EQ(Delete(10, v1::DELETION_KIND_RETENTION), absl::OkStatus());
}

TEST_F(DeletionTest, RetentionNeedsANewerCheckpointOnPresentWorkers) {
  Commit({10, 20});
  LoseW1();
  EXPECT_EQ(state().NewestWhole(job_), nullptr);
  EXPECT_EQ(Delete(10, v1::DELETION_KIND_RETENTION).code(), absl::StatusCode::kFailedPrecondition);
  // One shard of two is not enough.
  ASSERT_EQ(ApplyFact([&](v1::Fact& fact) {
              *fact.mutable_shard_holder_set()->mutable_ref() = Ref(20);
              fact.mutable_shard_holder_set()->set_rank(1);
              fact.mutable_shard_holder_set()->set_worker("w2");
              fact.mutable_shard_holder_set()->set_held(true);
            }),
            absl::OkStatus());
  EXPECT_EQ(state().NewestWhole(job_), nullptr);
  ASSERT_EQ(cluster_.Register("w1", 2, 2), absl::OkStatus());
  EXPECT_EQ(Delete(10, v1::DELETION_KIND_RETENTION), absl::OkStatus());
}

TEST_F(DeletionTest, RetentionNeedsANewerCheckpointThatIsNotAbandoned) {
  Commit({10, 20});
  v1::Update update = cluster_.Facts([&](v1::Fact& fact) {
    v1::AttemptEnded& ended = *fact.mutable_attempt_ended();
    ended.set_job(job_);
    ended.set_attempt(1);
    ended.set_outcome(v1::ATTEMPT_OUTCOME_FAILED);
    ended.set_rolls_back(true);
    ended.set_rollback_step(10);
  });
  v1::JobMoved& moved = *update.add_facts()->mutable_job_moved();
  moved.set_job(job_);
  moved.set_from(v1::JOB_STATE_RUNNING);
  moved.set_to(v1::JOB_STATE_RECOVERING);
  moved.set_reason("rolled back");
  ASSERT_EQ(cluster_.Apply(update), absl::OkStatus());
  ASSERT_TRUE(state().FindCheckpoint(Ref(20))->left());
  EXPECT_EQ(state().NewestWhole(job_)->ref().step(), 10);
  for (const int64_t step : {10, 20}) {
    EXPECT_EQ(Delete(step, v1::DELETION_KIND_RETENTION).code(),
              absl::StatusCode::kFailedPrecondition)
        << step;
  }
}

TEST_F(DeletionTest, TheNewestCheckpointOfAFinishedJobIsDeletedByAPersonAlone) {
  Commit({10, 20});
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  EXPECT_EQ(Delete(20, v1::DELETION_KIND_RETENTION).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Delete(20, v1::DELETION_KIND_REQUESTED), absl::OkStatus());
}

TEST_F(DeletionTest, NothingElseDeletesACheckpointOfTheCatalogue) {
  Commit({10, 20});
  EXPECT_EQ(Delete(10, v1::DELETION_KIND_LATE).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Delete(10, v1::DELETION_KIND_ORPHAN).code(), absl::StatusCode::kInvalidArgument);
}

// Orders to workers.

TEST_F(DeletionTest, AShardIsDroppedForTheReasonOfItsDeletion) {
  Commit({10, 20});
  ASSERT_EQ(Delete(10, v1::DELETION_KIND_RETENTION), absl::OkStatus());
  const int64_t deleted_by = state().sequence();
  EXPECT_THAT(Dropped(Shard(20)), IsEmpty());
  const std::vector<v1::DroppedShard> dropped = Dropped(Shard(10, 1));  // of the live attempt
  ASSERT_THAT(dropped, SizeIs(1));
  EXPECT_EQ(dropped[0].ref().step(), 10);
  EXPECT_EQ(dropped[0].rank(), 1);
  EXPECT_EQ(dropped[0].kind(), v1::DELETION_KIND_RETENTION);
  EXPECT_EQ(dropped[0].reason(), "why not");
  EXPECT_TRUE(SameEpoch(dropped[0].order(), state().store()));
  EXPECT_EQ(dropped[0].order().sequence(), deleted_by);
}

TEST_F(DeletionTest, WithoutARecordAShardOfAnEndedAttemptWasNotCommitted) {
  EXPECT_THAT(Dropped(Shard(30)), IsEmpty());  // its attempt lives
  EndAttempt();
  const std::vector<v1::DroppedShard> dropped = Dropped(Shard(30));
  ASSERT_THAT(dropped, SizeIs(1));
  EXPECT_EQ(dropped[0].kind(), v1::DELETION_KIND_NOT_COMMITTED);
  EXPECT_EQ(dropped[0].reason(), "attempt 1 ended before it was committed");
  EXPECT_TRUE(SameEpoch(dropped[0].order(), state().store()));
}

TEST_F(DeletionTest, AShardOfTheLiveAttemptIsDroppedIfItCameTooLate) {
  Commit({20});
  const std::vector<v1::DroppedShard> dropped = Dropped(Shard(10));
  ASSERT_THAT(dropped, SizeIs(1));
  EXPECT_EQ(dropped[0].kind(), v1::DELETION_KIND_LATE);
  EXPECT_NE(dropped[0].reason(), "");
  EXPECT_TRUE(SameEpoch(dropped[0].order(), state().store()));
}

TEST_F(DeletionTest, WhatAnotherEpochOrderedIsNeverDropped) {
  const v1::ShardReport late = Shard(10);
  const v1::ShardReport unfinished = Shard(30);
  v1::ShardReport twin = Shard(30);  // of another restore of the same backup
  Commit({20});
  BeginEpoch(2);
  twin.mutable_store()->set_epoch(2);
  twin.mutable_store()->set_epoch_id(std::string(32, 'f'));
  EXPECT_THAT(Dropped(late), IsEmpty());
  EndAttempt();
  for (const v1::ShardReport& shard : {late, unfinished, twin}) {
    EXPECT_THAT(Dropped(shard), IsEmpty());
  }
  EXPECT_THAT(Dropped(Shard(30)), SizeIs(1));
}

TEST_F(DeletionTest, ARecordOfAnEarlierEpochIsNoReason) {
  Commit({10, 20});
  ASSERT_EQ(Delete(10, v1::DELETION_KIND_RETENTION), absl::OkStatus());
  BeginEpoch(2);
  EndAttempt();
  const std::vector<v1::DroppedShard> dropped = Dropped(Shard(10));
  ASSERT_THAT(dropped, SizeIs(1));
  EXPECT_EQ(dropped[0].kind(), v1::DELETION_KIND_NOT_COMMITTED);
}

TEST_F(DeletionTest, ADeletedCheckpointOfTheLiveAttemptIsNotAcceptedAgain) {
  Commit({10, 20});
  ASSERT_EQ(ApplyFact([&](v1::Fact& fact) {
              *fact.mutable_checkpoint_damaged()->mutable_ref() = Ref(20);
            }),
            absl::OkStatus());
  ASSERT_EQ(Delete(20, v1::DELETION_KIND_REQUESTED), absl::OkStatus());
  EXPECT_TRUE(IsOutlived(state(), Shard(20)));  // although the newest good one is older
  EXPECT_THAT(Dropped(Shard(20)), SizeIs(1));
}

// Restoration.

TEST_F(DeletionTest, ARestoredCheckpointIsNotDroppedAndIsAdoptedOnceEveryShardIsStored) {
  Commit({10, 20});
  ASSERT_EQ(Delete(10, v1::DELETION_KIND_REQUESTED), absl::OkStatus());
  const std::vector<LooseShard> trash = {Trash("w1", 10, 0), Trash("w2", 10, 1)};
  ASSERT_EQ(Restore(Ref(10), trash).status(), absl::OkStatus());
  EXPECT_TRUE(state().FindDeletion(Ref(10))->restore_ordered());
  EXPECT_EQ(state().FindDeletion(Ref(10))->restore_author(), "ann");
  EXPECT_EQ(state().FindDeletion(Ref(10))->kind(), v1::DELETION_KIND_REQUESTED);
  EXPECT_THAT(Dropped(Shard(10)), IsEmpty());
  EXPECT_TRUE(IsOutlived(state(), Shard(10)));  // it enters the catalogue as a whole

  ASSERT_EQ(TakeRestored(trash), absl::OkStatus());
  EXPECT_EQ(state().FindCheckpoint(Ref(10)), nullptr);
  ASSERT_EQ(TakeRestored(std::vector<LooseShard>{Stored("w1", 10, 0), Trash("w2", 10, 1)}),
            absl::OkStatus());
  EXPECT_EQ(state().FindCheckpoint(Ref(10)), nullptr);
  ASSERT_EQ(TakeRestored(std::vector<LooseShard>{Stored("w1", 10, 0), Stored("w2", 10, 1)}),
            absl::OkStatus());
  const v1::Checkpoint* const restored = state().FindCheckpoint(Ref(10));
  ASSERT_NE(restored, nullptr);
  EXPECT_EQ(restored->state(), v1::CHECKPOINT_STATE_COMMITTED);
  EXPECT_EQ(restored->epoch_id(), "");
  EXPECT_THAT(state().FindShard(Ref(10), 1)->holders(), ElementsAre("w2"));
  EXPECT_EQ(state().FindDeletion(Ref(10)), nullptr);
  EXPECT_THAT(Dropped(Shard(10)), IsEmpty());
}

TEST_F(DeletionTest, WithoutAnOrderNothingIsAdopted) {
  Commit({10, 20});
  ASSERT_EQ(Delete(10, v1::DELETION_KIND_REQUESTED), absl::OkStatus());
  ASSERT_EQ(TakeRestored(std::vector<LooseShard>{Stored("w1", 10, 0), Stored("w1", 10, 1)}),
            absl::OkStatus());
  EXPECT_EQ(state().FindCheckpoint(Ref(10)), nullptr);
}

TEST_F(DeletionTest, ARestorationNamesTheRanksThatNoWorkerHas) {
  Commit({10, 20});
  ASSERT_EQ(Delete(10, v1::DELETION_KIND_REQUESTED), absl::OkStatus());
  const auto missing = Restore(Ref(10), std::vector<LooseShard>{Trash("w1", 10, 0)});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("no certain shard of rank 1;"));
  const auto none = Restore(Ref(10), {});
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(state().FindDeletion(Ref(10))->restore_ordered());
}

TEST_F(DeletionTest, TwoDifferentShardsOfARankPreventARestoration) {
  Commit({10, 20});
  ASSERT_EQ(Delete(10, v1::DELETION_KIND_REQUESTED), absl::OkStatus());
  const auto differ = Restore(
      Ref(10),
      std::vector<LooseShard>{Trash("w1", 10, 0), Trash("w1", 10, 1), Stored("w2", 10, 1, 8)});
  EXPECT_EQ(differ.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(differ.status().message(), HasSubstr("no certain shard of rank 1;"));
  ASSERT_EQ(
      Restore(Ref(10), std::vector<LooseShard>{Trash("w1", 10, 0), Trash("w1", 10, 1)}).status(),
      absl::OkStatus());
  // A worker that claims to store another one, while the trash has the first.
  ASSERT_EQ(TakeRestored(std::vector<LooseShard>{Stored("w1", 10, 0), Trash("w1", 10, 1),
                                                 Stored("w2", 10, 1, 8)}),
            absl::OkStatus());
  EXPECT_EQ(state().FindCheckpoint(Ref(10)), nullptr);
}

TEST_F(DeletionTest, ACheckpointOfTheCatalogueIsNotRestored) {
  Commit({10, 20});
  for (const int64_t attempt : {0, 1}) {
    EXPECT_EQ(Restore(Ref(10, attempt), {}).status().code(), absl::StatusCode::kFailedPrecondition)
        << attempt;
  }
  EXPECT_EQ(Restore(Ref(10, 2), {}).status().code(), absl::StatusCode::kInvalidArgument);
  v1::CheckpointRef unknown = Ref(10);
  unknown.set_job("nothing-9");
  EXPECT_EQ(Restore(unknown, {}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(DeletionTest, ACheckpointThatWasNeverKnownGetsARecordByTheOrder) {
  EndAttempt();
  const auto ref =
      Restore(Ref(30, 0), std::vector<LooseShard>{Trash("w1", 30, 0), Trash("w1", 30, 1)});
  ASSERT_EQ(ref.status(), absl::OkStatus());
  EXPECT_EQ(ref->attempt(), 1);  // the newest in the trash
  ASSERT_NE(state().FindDeletion(Ref(30)), nullptr);
  EXPECT_THAT(Dropped(Shard(30)), IsEmpty());
  ASSERT_EQ(TakeRestored(std::vector<LooseShard>{Stored("w1", 30, 0), Stored("w1", 30, 1)}),
            absl::OkStatus());
  EXPECT_NE(state().FindCheckpoint(Ref(30)), nullptr);
}

}  // namespace
}  // namespace nibble
