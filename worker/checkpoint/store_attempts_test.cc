// Steps and attempts side by side in one store: what a commit, a copy or a removal of one leaves of
// the others.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/store_layout.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using checkpoint_testing::EvenSlices;
using checkpoint_testing::LoadsExactly;
using checkpoint_testing::RandomState;
using checkpoint_testing::Save;
using checkpoint_testing::State;
using checkpoint_testing::TestHeader;
using checkpoint_testing::TestOptions;
using checkpoint_testing::WriteShard;
using file_testing::TempDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StoreAttemptsTest : public ::testing::Test {
 protected:
  std::unique_ptr<CheckpointStore> Open(const std::string& name, bool decides) {
    CheckpointStore::Options options = TestOptions();
    options.decides = decides;
    auto store = CheckpointStore::Open(directory_.Path(name), options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  // A checkpoint of one rank, sealed.
  ShardManifest Seal(CheckpointStore& store, int64_t step, int64_t attempt) {
    const auto shard = WriteShard(store, step, attempt, 0, state_, EvenSlices(state_, 0, 1));
    EXPECT_TRUE(shard.ok()) << shard.status();
    return shard.ok() ? *shard : ShardManifest();
  }
  static absl::Status Commit(CheckpointStore& store, const ShardManifest& shard) {
    return store.Commit(*MakeManifest(TestHeader(shard.step, shard.attempt, 1), {shard})).status();
  }

  const TempDirectory directory_;
  const State state_ = RandomState(1, 4, 500);
};

TEST_F(StoreAttemptsTest, ACommitLeavesNewerSealedShardsAndRemovesOlderOnes) {
  const auto store = Open("store", /*decides=*/true);
  const ShardManifest oldest = Seal(*store, 5, 1);
  const ShardManifest first = Seal(*store, 10, 1);
  const ShardManifest second = Seal(*store, 20, 1);
  ASSERT_EQ(Commit(*store, first), absl::OkStatus());
  EXPECT_THAT(store->InDoubt(), ElementsAre(second));
  EXPECT_TRUE(absl::IsFailedPrecondition(Commit(*store, oldest)));
  ASSERT_EQ(Commit(*store, second), absl::OkStatus());
  EXPECT_EQ(LoadsExactly(**store->OpenCheckpoint(20), state_), absl::OkStatus());
}

TEST_F(StoreAttemptsTest, ACommitLeavesOlderShardsThatAreStillWritten) {
  const auto store = Open("store", /*decides=*/true);
  auto writer = store->Begin(5, 1, 0);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_EQ(Commit(*store, Seal(*store, 10, 1)), absl::OkStatus());
  for (const auto& tensor : state_) {
    ASSERT_EQ((*writer)->Put(tensor.whole, tensor.bytes), absl::OkStatus());
  }
  EXPECT_TRUE((*writer)->Seal().ok());
}

// After a rollback an attempt writes a step once more.
TEST_F(StoreAttemptsTest, ACopyOfAStepIsTakenBesideTheCommittedOneOfAnotherAttempt) {
  const auto holder = Open("holder", /*decides=*/false);
  const ShardManifest old = Seal(*holder, 10, 1), replayed = Seal(*holder, 10, 2);
  const auto store = Open("store", /*decides=*/false);
  ASSERT_EQ(Commit(*store, Seal(*store, 10, 1)), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(store->BeginCopy(old).status()));
  const auto copy = store->BeginCopy(replayed);
  ASSERT_TRUE(copy.ok()) << copy.status();
  for (const auto& tensor : state_) {
    ASSERT_EQ((*copy)->Put(tensor.whole, tensor.bytes), absl::OkStatus());
  }
  ASSERT_TRUE((*copy)->Seal().ok());
  const std::vector<ShardManifest> sealed = store->InDoubt();
  ASSERT_EQ(sealed.size(), 1u);
  EXPECT_EQ(sealed[0].attempt, 2);
}

TEST_F(StoreAttemptsTest, WhatIsReopenedOrDiscardedIsOfThatAttempt) {
  const auto store = Open("store", /*decides=*/false);
  ASSERT_EQ(Save(*store, 10, 1, 1, state_), absl::OkStatus());
  const ShardManifest replayed = Seal(*store, 10, 2), next = Seal(*store, 20, 2);
  EXPECT_TRUE(absl::IsNotFound(store->Reopen(10, 2)));
  EXPECT_TRUE(absl::IsNotFound(store->Reopen(20, 1)));
  EXPECT_TRUE(absl::IsNotFound(store->DiscardShard(10, 1, 0)));
  EXPECT_EQ(store->Discard(20, 1), absl::OkStatus());
  EXPECT_THAT(store->InDoubt(), ElementsAre(replayed, next));
  ASSERT_EQ(store->Discard(10, 2), absl::OkStatus());
  EXPECT_THAT(store->InDoubt(), ElementsAre(next));
  EXPECT_TRUE(store->OpenCheckpoint(10).ok());
  ASSERT_EQ(store->DiscardShard(20, 2, 0), absl::OkStatus());
  EXPECT_THAT(store->InDoubt(), IsEmpty());
}

TEST_F(StoreAttemptsTest, AShardOfARankThatTheManifestDoesNotHaveIsNotCommitted) {
  const auto store = Open("store", /*decides=*/false);
  const ShardManifest shard = Seal(*store, 10, 1);
  ASSERT_TRUE(WriteShard(*store, 10, 1, 1, state_, {}).ok());
  const absl::Status refused = Commit(*store, shard);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("rank 1 is sealed here, but the manifest is of 1 ranks"));
  ASSERT_EQ(store->DiscardShard(10, 1, 1), absl::OkStatus());
  EXPECT_EQ(Commit(*store, shard), absl::OkStatus());
}

// As after a restoration of files by hand.
TEST_F(StoreAttemptsTest, ASealUnderTheNameOfAnotherStepAttemptOrRankIsNotRecovered) {
  namespace fs = std::filesystem;
  (void)Seal(*Open("store", /*decides=*/false), 10, 1);
  const std::string written = DirectoryName({Stage::kWriting, 10, 1, 1});
  const auto recovered = [this](const StoredDirectory& name, const std::string& written) {
    const std::string other = directory_.Path("other");
    fs::remove_all(other);
    fs::copy(directory_.Path("store"), other, fs::copy_options::recursive);
    fs::rename(other + "/" + written, other + "/" + DirectoryName(name));
    return Open("other", /*decides=*/false)->InDoubt().size();
  };
  EXPECT_EQ(recovered({Stage::kWriting, 10, 1, 7}, written), 1u);
  EXPECT_EQ(recovered({Stage::kWriting, 10, 2, 1}, written), 0u);
  EXPECT_EQ(recovered({Stage::kWriting, 11, 1, 1}, written), 0u);
  const std::string shard = directory_.Path("store/" + written + "/" + ShardDirectoryName(0));
  fs::rename(shard, directory_.Path("store/" + written + "/" + ShardDirectoryName(1)));
  fs::rename(shard + ".seal", directory_.Path("store/" + written + "/" + SealFileName(1)));
  EXPECT_EQ(recovered({Stage::kWriting, 10, 1, 1}, written), 0u);
}

}  // namespace
}  // namespace nibble
