// Copying shards between stores, and reopening checkpoints for it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/files/files_testing.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/shard_reader.h"
#include "worker/checkpoint/shard_writer.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using checkpoint_testing::LoadsExactly;
using checkpoint_testing::RandomState;
using checkpoint_testing::Save;
using checkpoint_testing::TestHeader;
using checkpoint_testing::TestOptions;
using file_testing::TempDirectory;
using testing::HasSubstr;

constexpr int64_t kStep = 10;
constexpr int64_t kAttempt = 3;
constexpr int32_t kWorld = 3;

class ShardCopyTest : public testing::Test {
 protected:
  ShardCopyTest() : from_(Open(from_directory_, true)), to_(Open(to_directory_, false)) {
    EXPECT_TRUE(Save(*from_, kStep, kAttempt, kWorld, state_).ok());
  }
  static std::unique_ptr<CheckpointStore> Open(const TempDirectory& directory, bool decides) {
    CheckpointStore::Options options = TestOptions();
    options.decides = decides;
    auto store = CheckpointStore::Open(directory.path(), options);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  // Copies in pieces of `piece` bytes; the byte at `damage` is changed.
  absl::StatusOr<ShardManifest> Copy(int32_t rank, size_t piece, int64_t damage = -1) {
    NIBBLE_ASSIGN_OR_RETURN(const auto reader, from_->OpenShard(kStep, kAttempt, rank));
    const ShardManifest& original = reader->manifest();
    NIBBLE_ASSIGN_OR_RETURN(auto writer, to_->BeginCopy(original));
    int64_t at = 0;
    for (const StoredSlice& stored : original.slices) {
      NIBBLE_RETURN_IF_ERROR(writer->BeginSlice(stored.slice));
      const int64_t end = at + SliceBytes(stored.slice);
      while (at < end) {
        std::vector<std::byte> bytes(std::min<size_t>(piece, static_cast<size_t>(end - at)));
        absl::Status status = reader->Read(at, absl::MakeSpan(bytes));
        if (damage >= at && damage < at + static_cast<int64_t>(bytes.size())) {
          bytes[static_cast<size_t>(damage - at)] ^= std::byte{1};
        }
        if (status.ok()) status = writer->Append(bytes);
        if (!status.ok()) return status;
        at += static_cast<int64_t>(bytes.size());
      }
    }
    return writer->Seal();
  }
  absl::Status Commit() {
    NIBBLE_ASSIGN_OR_RETURN(const auto manifest,
                            MakeManifest(TestHeader(kStep, kAttempt, kWorld), to_->InDoubt()));
    return to_->Commit(manifest).status();
  }

  const checkpoint_testing::State state_ = RandomState(11, 7, 3000);
  TempDirectory from_directory_, to_directory_;
  std::unique_ptr<CheckpointStore> from_, to_;
};

TEST_F(ShardCopyTest, CopiesOfEveryShardMakeTheSameCheckpoint) {
  // Even if a later attempt has begun here since.
  ASSERT_TRUE(to_->Fence(kAttempt + 4).ok());
  for (int32_t rank = 0; rank < kWorld; ++rank) {
    const auto copy = Copy(rank, rank == 0 ? 1 << 20 : 37);
    ASSERT_TRUE(copy.ok()) << copy.status();
  }
  ASSERT_TRUE(Commit().ok());
  const auto reader = to_->OpenCheckpoint(kStep);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->Verify().ok());
  EXPECT_TRUE(LoadsExactly(**reader, state_).ok());
}

TEST_F(ShardCopyTest, ACopyThatDiffersFromItsOriginalIsDetectedAndRemoved) {
  const auto copy = Copy(1, 64, 100);
  EXPECT_EQ(copy.status().code(), absl::StatusCode::kDataLoss) << copy.status();
  EXPECT_THAT(std::string(copy.status().message()), HasSubstr("of rank 1"));
  EXPECT_TRUE(to_->InDoubt().empty());
}

TEST_F(ShardCopyTest, AnIncompleteCopyIsNotSealed) {
  const auto reader = from_->OpenShard(kStep, kAttempt, 0);
  ASSERT_TRUE(reader.ok());
  auto writer = to_->BeginCopy((*reader)->manifest());
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_EQ((*writer)->Seal().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ShardCopyTest, ASealedShardIsReadableBeforeItsCheckpointIsCommitted) {
  ASSERT_TRUE(Copy(2, 512).ok());
  to_.reset();
  to_ = Open(to_directory_, false);
  const auto shard = to_->OpenShard(kStep, kAttempt, 2);
  ASSERT_TRUE(shard.ok()) << shard.status();
  int64_t chunks = 0;
  EXPECT_TRUE((*shard)->Verify(chunks).ok());
  EXPECT_GT(chunks, 0);
  EXPECT_EQ(to_->OpenShard(kStep, kAttempt, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(to_->OpenCheckpoint(kStep).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ShardCopyTest, ReopenedCheckpointTakesANewCopyOfADamagedShard) {
  for (int32_t rank = 0; rank < kWorld; ++rank) ASSERT_TRUE(Copy(rank, 256).ok());
  ASSERT_TRUE(Commit().ok());
  // A file of rank 1 is gone.
  for (const auto& entry : std::filesystem::recursive_directory_iterator(to_directory_.path())) {
    if (entry.path().string().find("shard-00001/") != std::string::npos &&
        entry.path().extension() == ".sst") {
      std::filesystem::remove(entry.path());
    }
  }
  EXPECT_FALSE((*to_->OpenCheckpoint(kStep))->shard_status(1).ok());
  EXPECT_EQ(Copy(1, 256).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(to_->Reopen(kStep, kAttempt).ok());
  EXPECT_EQ(to_->InDoubt().size(), 2u);
  ASSERT_TRUE(Copy(1, 256).ok());
  ASSERT_TRUE(Commit().ok());
  EXPECT_TRUE((*to_->OpenCheckpoint(kStep))->Verify().ok());
}

TEST_F(ShardCopyTest, DiscardingOneShardKeepsTheOthers) {
  ASSERT_TRUE(Copy(0, 256).ok());
  ASSERT_TRUE(Copy(1, 256).ok());
  ASSERT_TRUE(to_->DiscardShard(kStep, kAttempt, 0).ok());
  ASSERT_EQ(to_->InDoubt().size(), 1u);
  EXPECT_EQ(to_->InDoubt()[0].rank, 1);
  EXPECT_EQ(to_->DiscardShard(kStep, kAttempt, 0).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(to_->DiscardShard(kStep, kAttempt, 1).ok());
  EXPECT_TRUE(to_->InDoubt().empty());
}

TEST_F(ShardCopyTest, AShardThatIsMovedOutAndInIsSealedAgain) {
  const TempDirectory outside;
  for (int32_t rank = 0; rank < kWorld; ++rank) ASSERT_TRUE(Copy(rank, 256).ok());
  ASSERT_TRUE(to_->MoveShardOut(kStep, kAttempt, 1, outside.path()).ok());
  EXPECT_EQ(to_->InDoubt().size(), static_cast<size_t>(kWorld - 1));
  EXPECT_TRUE(ReadSeal(outside.path(), 1).ok());
  EXPECT_TRUE(absl::IsNotFound(to_->MoveShardOut(kStep, kAttempt, 1, outside.path())));
  EXPECT_TRUE(absl::IsNotFound(to_->MoveShardIn(kStep, kAttempt, 0, outside.path()).status()));
  EXPECT_FALSE(to_->MoveShardIn(kStep + 1, kAttempt, 1, outside.path()).ok());
  const auto back = to_->MoveShardIn(kStep, kAttempt, 1, outside.path());
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_TRUE(Commit().ok());
  EXPECT_TRUE((*to_->OpenCheckpoint(kStep))->Verify().ok());
}

TEST_F(ShardCopyTest, AMovedShardDoesNotReplaceOneThatIsSealed) {
  const TempDirectory outside;
  ASSERT_TRUE(Copy(0, 256).ok());
  ASSERT_TRUE(to_->MoveShardOut(kStep, kAttempt, 0, outside.path()).ok());
  ASSERT_TRUE(Copy(0, 256).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(to_->MoveShardIn(kStep, kAttempt, 0, outside.path()).status()));
  EXPECT_TRUE(ReadSeal(outside.path(), 0).ok());
  EXPECT_EQ(to_->InDoubt().size(), 1u);
}

TEST_F(ShardCopyTest, AStoreThatDecidesRefusesCopies) {
  const auto shard = from_->OpenShard(kStep, kAttempt, 0);
  ASSERT_TRUE(shard.ok());
  EXPECT_EQ(from_->BeginCopy((*shard)->manifest()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(from_->Reopen(kStep, kAttempt).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace nibble
