// Promises of a store of checkpoints: what is committed, fenced off, pinned, deleted and refused.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "common/files/files.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_store.h"
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
using ::testing::SizeIs;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class CheckpointStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<CheckpointStore> Open(const CheckpointStore::Options& options = TestOptions()) {
    absl::StatusOr<std::unique_ptr<CheckpointStore>> store = CheckpointStore::Open(path_, options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  static std::vector<int64_t> Steps(const CheckpointStore& store) {
    std::vector<int64_t> steps;
    const auto list = store.List();
    EXPECT_TRUE(list.ok()) << list.status();
    if (!list.ok()) return steps;
    for (const CheckpointSummary& summary : *list) steps.push_back(summary.step);
    return steps;
  }

  const TempDirectory directory_;
  const std::string path_ = directory_.path() + "/checkpoints";
  const State state_ = RandomState(1, 6, 2000);
};

TEST_F(CheckpointStoreTest, ACommittedCheckpointIsPresentAfterReopening) {
  {
    auto store = Open();
    EXPECT_TRUE(store->open_report().created);
    ASSERT_EQ(Save(*store, 40, 1, 2, state_), absl::OkStatus());
  }
  auto store = Open();
  EXPECT_FALSE(store->open_report().created);
  const auto list = store->List();
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_THAT(*list, SizeIs(1));
  EXPECT_EQ(list->front().header, TestHeader(40, 1, 2));
  EXPECT_EQ(list->front().tensors, static_cast<int64_t>(state_.size()));
  const auto reader = store->OpenCheckpoint(40);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(LoadsExactly(**reader, state_), absl::OkStatus());
  const auto verification = store->Verify(40);
  ASSERT_TRUE(verification.ok()) << verification.status();
  EXPECT_TRUE(verification->ok());
  EXPECT_GT(verification->chunks, 10);
}

TEST_F(CheckpointStoreTest, SealedShardsAreNotACheckpointUntilCommitted) {
  auto store = Open();
  const auto shard = WriteShard(*store, 40, 1, 0, state_, EvenSlices(state_, 0, 1));
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_THAT(Steps(*store), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(store->OpenCheckpoint(40).status()));
  EXPECT_TRUE(absl::IsNotFound(store->LatestGood().status()));
  ASSERT_TRUE(store->Commit(*MakeManifest(TestHeader(40, 1, 1), {*shard})).ok());
  EXPECT_THAT(Steps(*store), ElementsAre(40));
}

TEST_F(CheckpointStoreTest, UncommittedLeftoversAreRemovedAtOpenAndTheirSpaceIsFreed) {
  auto store = Open();
  ASSERT_EQ(Save(*store, 10, 1, 1, state_), absl::OkStatus());
  const int64_t before = TreeBytes(path_);
  ASSERT_TRUE(WriteShard(*store, 20, 1, 0, state_, EvenSlices(state_, 0, 1)).ok());
  EXPECT_GT(TreeBytes(path_), before);
  store.reset();
  store = Open();
  EXPECT_THAT(store->open_report().removed, SizeIs(1));
  EXPECT_GT(store->open_report().removed_bytes, 0);
  EXPECT_EQ(TreeBytes(path_), before);
  EXPECT_THAT(Steps(*store), ElementsAre(10));
}

TEST_F(CheckpointStoreTest, ADestroyedWriterLeavesNothing) {
  auto store = Open();
  const int64_t before = TreeBytes(path_);
  {
    auto writer = store->Begin(20, 1, 0);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_EQ((*writer)->Put(state_[0].whole, state_[0].bytes), absl::OkStatus());
  }
  EXPECT_EQ(TreeBytes(path_), before);
}

TEST_F(CheckpointStoreTest, LateShardFromOldAttemptIsRefused) {
  auto store = Open();
  const auto late = WriteShard(*store, 40, 3, 0, state_, EvenSlices(state_, 0, 1));
  ASSERT_TRUE(late.ok()) << late.status();
  ASSERT_EQ(store->Fence(5), absl::OkStatus());
  const Manifest manifest = *MakeManifest(TestHeader(40, 3, 1), {*late});
  const absl::Status refused = store->Commit(manifest).status();
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("attempt 3"));
  EXPECT_THAT(Message(refused), HasSubstr("attempt 5"));
  EXPECT_TRUE(absl::IsAborted(store->Begin(41, 4, 0).status()));
  EXPECT_TRUE(absl::IsAborted(store->Fence(4)));
  EXPECT_THAT(Steps(*store), IsEmpty());
}

TEST_F(CheckpointStoreTest, AFenceLastsAcrossARestart) {
  auto store = Open();
  ASSERT_EQ(store->Fence(5), absl::OkStatus());
  store.reset();
  store = Open();
  EXPECT_EQ(store->attempt(), 5);
  EXPECT_TRUE(absl::IsAborted(store->Begin(40, 4, 0).status()));
  EXPECT_TRUE(store->Begin(40, 5, 0).ok());
}

TEST_F(CheckpointStoreTest, BeginningAnAttemptFencesOffLowerOnes) {
  auto store = Open();
  ASSERT_EQ(Save(*store, 40, 2, 1, state_), absl::OkStatus());
  EXPECT_EQ(store->attempt(), 2);
  EXPECT_TRUE(absl::IsAborted(store->Begin(50, 1, 0).status()));
}

TEST_F(CheckpointStoreTest, AStoreOfAnotherJobIsRefusedNamingBoth) {
  Open();
  CheckpointStore::Options other = TestOptions();
  other.identity.job = "job-8";
  const absl::Status refused = CheckpointStore::Open(path_, other).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("job \"job-7\""));
  EXPECT_THAT(Message(refused), HasSubstr("job \"job-8\""));
  other = TestOptions();
  other.identity.cluster = "other";
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckpointStore::Open(path_, other).status()));
}

TEST_F(CheckpointStoreTest, CheckpointOfAnotherJobInTheDirectoryIsRefused) {
  ASSERT_EQ(Save(*Open(), 40, 1, 1, state_), absl::OkStatus());
  const std::string mine = directory_.path() + "/mine";
  CheckpointStore::Options options = TestOptions();
  options.identity.job = "job-8";
  auto store = CheckpointStore::Open(mine, options);
  ASSERT_TRUE(store.ok()) << store.status();
  std::filesystem::copy(
      path_, mine,
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::skip_existing);
  const auto reader = (*store)->OpenCheckpoint(40);
  EXPECT_TRUE(absl::IsFailedPrecondition(reader.status())) << reader.status();
  EXPECT_THAT(Message(reader.status()), HasSubstr("job-7"));
}

TEST_F(CheckpointStoreTest, AStoreOfANewerVersionIsRefused) {
  Open();
  std::string text = "nibble checkpoint store\nversion 2\nanything else\n";
  // The checksum is at the same place in every version.
  const std::string crc = absl::StrCat("crc32c ", absl::Hex(Crc32c(text), absl::kZeroPad8), "\n");
  std::ofstream(path_ + "/STORE") << text << crc;
  const absl::Status refused = CheckpointStore::Open(path_, TestOptions()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("version 2"));
}

TEST_F(CheckpointStoreTest, ASecondWriterIsRefusedAndAReaderIsNot) {
  auto store = Open();
  ASSERT_EQ(Save(*store, 40, 1, 1, state_), absl::OkStatus());
  const absl::Status refused = CheckpointStore::Open(path_, TestOptions()).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr(absl::StrCat("process ", getpid())));

  CheckpointStore::Options options = TestOptions();
  options.read_only = true;
  auto reader = Open(options);
  EXPECT_THAT(Steps(*reader), ElementsAre(40));
  EXPECT_TRUE(absl::IsFailedPrecondition(reader->Begin(50, 1, 0).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(reader->Delete(40)));
  EXPECT_TRUE(absl::IsFailedPrecondition(reader->Pin(40)));
  EXPECT_TRUE(absl::IsFailedPrecondition(reader->Discard(40, 1)));
  ASSERT_EQ(Save(*store, 50, 1, 1, state_), absl::OkStatus());
  EXPECT_THAT(Steps(*reader), ElementsAre(40, 50));
}

TEST_F(CheckpointStoreTest, OpeningAMissingStoreReadOnlyCreatesNothing) {
  CheckpointStore::Options options = TestOptions();
  options.read_only = true;
  EXPECT_TRUE(absl::IsNotFound(CheckpointStore::Open(path_, options).status()));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(CheckpointStoreTest, RetentionKeepsTheLastTheNthAndThePinned) {
  CheckpointStore::Options options = TestOptions();
  options.retention = {.keep_last = 2, .keep_every = 30};
  auto store = Open(options);
  for (int64_t step = 10; step <= 80; step += 10) {
    ASSERT_EQ(Save(*store, step, 1, 1, state_), absl::OkStatus());
    if (step == 40) {
      ASSERT_EQ(store->Pin(40), absl::OkStatus());
    }
  }
  EXPECT_THAT(Steps(*store), ElementsAre(30, 40, 60, 70, 80));
  ASSERT_EQ(store->Unpin(40), absl::OkStatus());
  ASSERT_EQ(Save(*store, 90, 1, 1, state_), absl::OkStatus());
  EXPECT_THAT(Steps(*store), ElementsAre(30, 60, 80, 90));
}

TEST_F(CheckpointStoreTest, CommitReportsTheCheckpointsThatRetentionDeleted) {
  CheckpointStore::Options options = TestOptions();
  options.retention = {.keep_last = 1};
  auto store = Open(options);
  ASSERT_EQ(Save(*store, 10, 1, 1, state_), absl::OkStatus());
  const int64_t one = TreeBytes(path_);
  const auto shard = WriteShard(*store, 20, 1, 0, state_, EvenSlices(state_, 0, 1));
  ASSERT_TRUE(shard.ok());
  const auto report = store->Commit(*MakeManifest(TestHeader(20, 1, 1), {*shard}));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->deleted, ElementsAre(10));
  EXPECT_THAT(report->problems, IsEmpty());
  EXPECT_EQ(TreeBytes(path_), one);
}

TEST_F(CheckpointStoreTest, DeletingACheckpointFreesItsSpace) {
  auto store = Open();
  const int64_t empty = TreeBytes(path_);
  ASSERT_EQ(Save(*store, 10, 1, 1, state_), absl::OkStatus());
  ASSERT_EQ(store->Pin(10), absl::OkStatus());
  const absl::Status pinned = store->Delete(10);
  EXPECT_TRUE(absl::IsFailedPrecondition(pinned)) << pinned;
  ASSERT_EQ(store->Unpin(10), absl::OkStatus());
  ASSERT_EQ(store->Delete(10), absl::OkStatus());
  EXPECT_EQ(TreeBytes(path_), empty);
  EXPECT_TRUE(absl::IsNotFound(store->Delete(10)));
  EXPECT_TRUE(absl::IsNotFound(store->Pin(10)));
  EXPECT_TRUE(absl::IsNotFound(store->Unpin(10)));
}

TEST_F(CheckpointStoreTest, APinLastsAcrossARestart) {
  auto store = Open();
  ASSERT_EQ(Save(*store, 10, 1, 1, state_), absl::OkStatus());
  ASSERT_EQ(store->Pin(10), absl::OkStatus());
  store.reset();
  EXPECT_TRUE(Open()->List()->front().pinned);
}

TEST_F(CheckpointStoreTest, CheckpointOfTheSameStepReplacesTheOld) {
  auto store = Open();
  ASSERT_EQ(Save(*store, 40, 1, 1, state_), absl::OkStatus());
  const State other = RandomState(2, 6, 2000);
  ASSERT_EQ(Save(*store, 40, 1, 2, other), absl::OkStatus());
  EXPECT_THAT(Steps(*store), ElementsAre(40));
  EXPECT_EQ(LoadsExactly(**store->OpenCheckpoint(40), other), absl::OkStatus());
}

TEST_F(CheckpointStoreTest, LatestIsTheOneCommittedLastAlsoAfterARollBack) {
  auto store = Open();
  for (const int64_t step : {30, 40, 50}) {
    ASSERT_EQ(Save(*store, step, 1, 1, state_), absl::OkStatus());
  }
  ASSERT_EQ(Save(*store, 35, 2, 1, state_), absl::OkStatus());
  store.reset();
  store = Open();
  const auto good = store->LatestGood();
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->reader->manifest().header.step, 35);
}

TEST_F(CheckpointStoreTest, RankThatBeginsAgainStartsOver) {
  auto store = Open();
  ASSERT_TRUE(WriteShard(*store, 40, 1, 0, RandomState(2, 3, 100), {}).ok());
  {
    auto writer = store->Begin(40, 1, 0);
    ASSERT_TRUE(writer.ok()) << writer.status();
    const absl::Status twice = store->Begin(40, 1, 0).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(twice)) << twice;
  }
  ASSERT_EQ(Save(*store, 40, 1, 1, state_), absl::OkStatus());
  EXPECT_EQ(LoadsExactly(**store->OpenCheckpoint(40), state_), absl::OkStatus());
}

TEST_F(CheckpointStoreTest, RanksWriteSideBySideWhileOthersRead) {
  auto store = Open();
  ASSERT_EQ(Save(*store, 10, 1, 1, state_), absl::OkStatus());
  constexpr int32_t kWorld = 4;
  std::vector<absl::StatusOr<ShardManifest>> shards(kWorld, absl::UnknownError("not written"));
  std::vector<std::thread> ranks;
  for (int32_t rank = 0; rank < kWorld; ++rank) {
    ranks.emplace_back([&, rank] {
      shards[rank] = WriteShard(*store, 20, 1, rank, state_, EvenSlices(state_, rank, kWorld));
    });
  }
  EXPECT_EQ(LoadsExactly(*store->LatestGood()->reader, state_), absl::OkStatus());
  EXPECT_THAT(Steps(*store), ElementsAre(10));
  for (std::thread& rank : ranks) rank.join();
  std::vector<ShardManifest> sealed;
  for (const auto& shard : shards) {
    ASSERT_TRUE(shard.ok()) << shard.status();
    sealed.push_back(*shard);
  }
  ASSERT_TRUE(store->Commit(*MakeManifest(TestHeader(20, 1, kWorld), sealed)).ok());
  EXPECT_EQ(LoadsExactly(*store->LatestGood()->reader, state_), absl::OkStatus());
}

TEST_F(CheckpointStoreTest, CommitRefusesAManifestThatDiffersFromTheSealedShards) {
  auto store = Open();
  const auto shard = WriteShard(*store, 40, 1, 0, state_, EvenSlices(state_, 0, 1));
  ASSERT_TRUE(shard.ok());
  Manifest manifest = *MakeManifest(TestHeader(40, 1, 1), {*shard});
  manifest.shards[0].slices[0].chunk_crcs[0] ^= 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(store->Commit(manifest).status()));
  auto writer = store->Begin(40, 1, 1);
  ASSERT_TRUE(writer.ok());
  const absl::Status writing =
      store->Commit(*MakeManifest(TestHeader(40, 1, 1), {*shard})).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(writing)) << writing;
  EXPECT_THAT(Message(writing), HasSubstr("rank 1 is still being written"));
  EXPECT_THAT(Steps(*store), IsEmpty());
}

TEST_F(CheckpointStoreTest, AStoreThatDoesNotDecideKeepsSealedShardsUntilCommitOrDiscard) {
  CheckpointStore::Options options = TestOptions();
  options.decides = false;
  auto store = Open(options);
  const auto kept = WriteShard(*store, 40, 1, 0, state_, EvenSlices(state_, 0, 1));
  const auto dropped = WriteShard(*store, 50, 1, 0, state_, EvenSlices(state_, 0, 1));
  ASSERT_TRUE(kept.ok() && dropped.ok());
  auto unsealed = store->Begin(60, 1, 0);
  ASSERT_TRUE(unsealed.ok());
  unsealed->reset();
  store.reset();

  store = Open(options);
  EXPECT_THAT(store->InDoubt(), ElementsAre(*kept, *dropped));
  ASSERT_TRUE(store->Commit(*MakeManifest(TestHeader(40, 1, 1), {*kept})).ok());
  ASSERT_EQ(store->Discard(50, 1), absl::OkStatus());
  EXPECT_THAT(store->InDoubt(), IsEmpty());
  EXPECT_THAT(Steps(*store), ElementsAre(40));
  EXPECT_EQ(LoadsExactly(**store->OpenCheckpoint(40), state_), absl::OkStatus());
}

TEST_F(CheckpointStoreTest, ALostStoreRecordIsRebuiltAndReported) {
  auto store = Open();
  ASSERT_EQ(Save(*store, 40, 3, 1, state_), absl::OkStatus());
  ASSERT_EQ(Save(*store, 50, 3, 1, state_), absl::OkStatus());
  store.reset();
  std::filesystem::remove(path_ + "/STORE");
  store = Open();
  ASSERT_THAT(store->open_report().problems, SizeIs(1));
  EXPECT_THAT(store->open_report().problems[0], HasSubstr("STORE"));
  EXPECT_EQ(store->attempt(), 3);
  EXPECT_TRUE(store->List()->at(0).pinned);
  EXPECT_TRUE(store->List()->at(1).pinned);
  store.reset();
  EXPECT_THAT(Open()->open_report().problems, IsEmpty());
}

TEST_F(CheckpointStoreTest, ADamagedRecordOfAnEmptyStoreIsRefused) {
  Open();
  std::ofstream(path_ + "/STORE") << "nibble checkpoint store\n";
  const absl::Status refused = CheckpointStore::Open(path_, TestOptions()).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("STORE"));
}

TEST_F(CheckpointStoreTest, OptionsOutOfBoundsAreNamed) {
  CheckpointStore::Options options = TestOptions();
  options.chunk_bytes = 7;
  EXPECT_THAT(Message(CheckpointStore::Open(path_, options).status()), HasSubstr("chunk_bytes"));
  options = TestOptions();
  options.retention.keep_last = 0;
  EXPECT_THAT(Message(CheckpointStore::Open(path_, options).status()), HasSubstr("keep_last"));
  options = TestOptions();
  options.identity.job = "";
  EXPECT_THAT(Message(CheckpointStore::Open(path_, options).status()), HasSubstr("job"));
}

}  // namespace
}  // namespace nibble
