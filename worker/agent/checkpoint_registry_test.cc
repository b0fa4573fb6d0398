// Which shards a registry reports, and what the coordinator's answers do to them.
#include "worker/agent/checkpoint_registry.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "worker/agent/checkpoint_registry_testing.h"

namespace nibble {
namespace {

using agent_testing::CheckpointRegistryTest;
using agent_testing::kRegistryJob;

TEST_F(CheckpointRegistryTest, ACheckpointIsLoadableOnceTheCoordinatorHasAcceptedIt) {
  Open();
  Answer();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  EXPECT_EQ(shard.bytes(), 16);
  // An answer to a report from before the shard was here.
  Answer({}, 0);
  EXPECT_FALSE(IsThere(shard.ref()));
  Answer();
  const auto outcome = rank->client->Wait();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_TRUE(outcome->status.ok()) << outcome->status;
  EXPECT_TRUE(IsThere(shard.ref()));
  const auto held = Report();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].SerializeAsString(), shard.SerializeAsString());
}

TEST_F(CheckpointRegistryTest, AnswersOfAnEarlierStreamDoNotCount) {
  Open();
  const auto rank = Connect(1);
  number_ = 7;
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  number_ = 0;
  (void)Report();  // begins a stream
  Answer({}, 0);
  EXPECT_FALSE(IsThere(shard.ref()));
  Answer({}, 1);
  EXPECT_TRUE(IsThere(shard.ref()));
}

TEST_F(CheckpointRegistryTest, AShardThatTheCoordinatorDropsIsNotACheckpoint) {
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const auto shards = Report();
  Answer(shards);
  const auto outcome = rank->client->Wait();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->status.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Report().empty());
  EXPECT_FALSE(IsThere(shards[0].ref()));
}

TEST_F(CheckpointRegistryTest, AReportedShardAwaitsItsAnswerAlsoInTheNextLife) {
  Open();
  auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  rank.reset();
  registry_.reset();
  Open();
  const auto again = Report();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].SerializeAsString(), shard.SerializeAsString());
  Answer();
  EXPECT_TRUE(IsThere(shard.ref()));
}

TEST_F(CheckpointRegistryTest, AnEarlierAttemptsCheckpointIsAcceptedAlsoAfterTheNextHasBegun) {
  Open();
  auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  rank.reset();
  registry_->CloseAttempt(kRegistryJob, 1);
  const auto next = Connect(2);
  EXPECT_FALSE(IsThere(shard.ref()));
  Answer();
  EXPECT_TRUE(IsThere(shard.ref()));
}

TEST_F(CheckpointRegistryTest, ACheckpointToResumeFromCountsAsAccepted) {
  Open();
  auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  rank.reset();
  registry_->CloseAttempt(kRegistryJob, 1);
  EXPECT_FALSE(IsThere(shard.ref()));
  registry_->Accept(shard.ref());
  EXPECT_TRUE(registry_->MakeLoadable(shard.ref()).ok());
  EXPECT_TRUE(IsThere(shard.ref()));
}

TEST_F(CheckpointRegistryTest, AStaleAttemptIsAborted) {
  Open();
  const auto rank = Connect(2);
  EXPECT_EQ(registry_->OpenAttempt(kRegistryJob, 1, 1).status().code(), absl::StatusCode::kAborted);
}

TEST_F(CheckpointRegistryTest, AnAcceptedCheckpointThatIsDroppedIsDeleted) {
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const auto shards = Report();
  Answer();
  ASSERT_TRUE(IsThere(shards[0].ref()));
  Answer(shards);
  EXPECT_FALSE(IsThere(shards[0].ref()));
  EXPECT_TRUE(Report().empty());
  EXPECT_EQ(registry_->OpenShard(shards[0].ref(), 0).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointRegistryTest, ALeasedCheckpointIsDroppedAfterItsLease) {
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const auto shards = Report();
  Answer();
  CheckpointRegistry::Lease lease = registry_->Keep(shards[0].ref());
  Answer(shards);
  EXPECT_TRUE(IsThere(shards[0].ref()));
  EXPECT_EQ(Report().size(), 1u);
  lease.reset();
  Answer(shards);
  EXPECT_FALSE(IsThere(shards[0].ref()));
}

TEST_F(CheckpointRegistryTest, ADroppedShardIsNotInTheNextReport) {
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const auto shards = Report();
  Answer();
  v1::ConnectResponse response;
  response.set_answered(number_);
  *response.add_dropped()->mutable_ref() = shards[0].ref();
  registry_->Answered(response);
  // The removal may or may not be finished by now.
  EXPECT_TRUE(Report().empty());
  registry_->AwaitSettled();
  EXPECT_TRUE(Report().empty());
}

TEST_F(CheckpointRegistryTest, DroppingOneRanksShardKeepsTheOthersAlsoInTheNextLife) {
  Open();
  auto first = Connect(1, 0, 2);
  Snapshot(*first, 10, 1);
  first.reset();
  registry_->CloseAttempt(kRegistryJob, 1);
  auto second = Connect(1, 1, 2);
  Snapshot(*second, 10, 1);
  const auto shards = Report();
  ASSERT_EQ(shards.size(), 2u);
  Answer();
  ASSERT_TRUE(IsThere(shards[0].ref()));
  Answer({shards[0]});
  EXPECT_FALSE(IsThere(shards[0].ref()));
  second.reset();
  for (int life = 0; life < 2; ++life) {
    const auto left = Report();
    ASSERT_EQ(left.size(), 1u);
    EXPECT_EQ(left[0].SerializeAsString(), shards[1].SerializeAsString());
    EXPECT_EQ(registry_->OpenShard(shards[0].ref(), 0).status().code(),
              absl::StatusCode::kNotFound);
    EXPECT_TRUE(registry_->OpenShard(shards[1].ref(), 1).ok());
    registry_.reset();
    Open();
    number_ = 0;
  }
}

// Two attempts' checkpoints of the same step compete for the step's name: each commit moves the
// files of both.
TEST_F(CheckpointRegistryTest, AShardWhoseFilesAreMovedCanBeOpenedAtAnyTime) {
  constexpr int kMoves = 60;
  Open();
  auto first = Connect(1);
  Snapshot(*first, 10, 1);
  const v1::CheckpointRef one = Report().at(0).ref();
  Answer();
  first.reset();
  registry_->CloseAttempt(kRegistryJob, 1);
  auto second = Connect(2);
  Snapshot(*second, 10, 2);
  v1::CheckpointRef two = one;
  two.set_attempt(2);
  std::atomic<bool> done = false;
  std::thread mover([&] {
    for (int i = 0; i < kMoves; ++i) {
      const absl::Status moved = registry_->MakeLoadable(i % 2 == 0 ? two : one);
      EXPECT_TRUE(moved.ok()) << moved;
    }
    done = true;
  });
  while (!done) {
    const auto reader = registry_->OpenShard(one, 0);
    if (!reader.ok()) {
      ADD_FAILURE() << reader.status();
      break;
    }
    int64_t chunks = 0;
    const absl::Status read = (*reader)->Verify(chunks);
    EXPECT_TRUE(read.ok()) << read;
  }
  mover.join();
}

TEST_F(CheckpointRegistryTest, ARankOfALargerWorldIsDoneWhenItsShardIsAccepted) {
  Open();
  const auto rank = Connect(1, 1, 3);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  EXPECT_EQ(shard.rank(), 1);
  EXPECT_EQ(shard.world(), 3);
  Answer();
  const auto outcome = rank->client->Wait();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_TRUE(outcome->status.ok()) << outcome->status;
  // The other shards are elsewhere: one shard can be read here, and nothing loaded.
  EXPECT_FALSE(IsThere(shard.ref()));
  EXPECT_TRUE(registry_->OpenShard(shard.ref(), 1).ok());
  const absl::Status loadable = registry_->MakeLoadable(shard.ref());
  EXPECT_EQ(loadable.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(loadable.message()),
            "checkpoint of step 10, attempt 1: of 3 shards 2 are not here, rank 0, 2 first");
}

TEST_F(CheckpointRegistryTest, ADamagedShardIsNoLongerReported) {
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const auto shards = Report();
  Answer();
  ASSERT_TRUE(registry_->RemoveDamaged(shards[0].ref(), 0).ok());
  EXPECT_TRUE(Report().empty());
  EXPECT_FALSE(IsThere(shards[0].ref()));
}

v1::StoreIdentity StoreOf(char digit, int64_t epoch) {
  v1::StoreIdentity store;
  store.set_id(std::string(32, digit));
  store.set_epoch(epoch);
  return store;
}

TEST_F(CheckpointRegistryTest, OnlyTheStoreThatOrderedAShardInTheSameEpochDropsIt) {
  store_ = answering_ = StoreOf('a', 1);
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const auto shards = Report();
  ASSERT_EQ(shards.size(), 1u);
  EXPECT_EQ(shards[0].store().SerializeAsString(), store_.SerializeAsString());
  Answer();
  for (const v1::StoreIdentity& other : {StoreOf('b', 1), StoreOf('a', 2), v1::StoreIdentity()}) {
    answering_ = other;
    Answer(shards);
    EXPECT_TRUE(IsThere(shards[0].ref())) << other.ShortDebugString();
  }
  answering_ = store_;
  Answer(shards);
  EXPECT_FALSE(IsThere(shards[0].ref()));
}

TEST_F(CheckpointRegistryTest, AnotherStoreAcceptsNothingUntilItHasTakenTheShardOver) {
  store_ = StoreOf('a', 1);
  answering_ = StoreOf('b', 1);
  Open();
  auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  Answer();
  EXPECT_FALSE(IsThere(shard.ref()));
  v1::DesiredReplica known;
  *known.mutable_ref() = shard.ref();
  known.set_manifest_crc32c(shard.manifest_crc32c() + 1);
  registry_->TakeOver(known, answering_);  // another shard's checksum
  registry_->AwaitSettled();
  EXPECT_EQ(Report().at(0).store().id(), store_.id());
  known.set_manifest_crc32c(shard.manifest_crc32c());
  registry_->TakeOver(known, answering_);
  registry_->AwaitSettled();
  EXPECT_EQ(Report().at(0).store().id(), answering_.id());
  Answer();
  EXPECT_TRUE(IsThere(shard.ref()));
  // The same in the next life.
  rank.reset();
  registry_.reset();
  Open();
  EXPECT_EQ(Report().at(0).store().id(), answering_.id());
}

TEST_F(CheckpointRegistryTest, AnOrderToRemoveOrphansDropsThoseOfTheStoreThatItNames) {
  store_ = answering_ = StoreOf('a', 1);
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  Answer();
  answering_ = StoreOf('b', 1);
  registry_->RemoveOrphans(kRegistryJob, StoreOf('c', 1).id(), answering_);
  registry_->RemoveOrphans(kRegistryJob, store_.id(), store_);  // except this epoch
  registry_->AwaitSettled();
  EXPECT_TRUE(IsThere(shard.ref()));
  registry_->RemoveOrphans(kRegistryJob, store_.id(), answering_);
  registry_->AwaitSettled();
  EXPECT_FALSE(IsThere(shard.ref()));
  EXPECT_TRUE(Report().empty());
}

}  // namespace
}  // namespace nibble
