#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/crc32c.h"
#include "common/files/files.h"
#include "common/files/files_testing.h"
#include "common/mutex.h"
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

// Needs the right to mount a file system.
TEST_F(CheckpointStoreTest, AFileSystemWithoutDirectWritesWorksAndIsReported) {
  std::filesystem::create_directory(path_);
  if (mount("ramfs", path_.c_str(), "ramfs", 0, nullptr) != 0) {
    GTEST_SKIP() << "cannot mount a file system: " << std::strerror(errno);
  }
  const absl::Cleanup unmount = [this] { (void)umount2(path_.c_str(), MNT_DETACH); };
  auto store = Open();
  auto writer = store->Begin(40, 1, 0);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& tensor : state_) {
    ASSERT_EQ((*writer)->Put(tensor.whole, tensor.bytes), absl::OkStatus());
  }
  const auto shard = (*writer)->Seal();
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_FALSE((*writer)->direct());
  ASSERT_TRUE(store->Commit(*MakeManifest(TestHeader(40, 1, 1), {*shard})).ok());
  const auto good = store->LatestGood();
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(LoadsExactly(*good->reader, state_), absl::OkStatus());
}

// Follows which files have bytes that a power cut would lose.
class SyncTracker : public DiskFaults {
 public:
  int BeforeWrite(const std::string& path, int64_t) override {
    MutexLock lock(&mutex_);
    dirty_[path] = true;
    return 0;
  }
  void AfterSync(const std::string& path) override {
    MutexLock lock(&mutex_);
    struct stat info = {};
    // A file may get its name after it was written: what counts is which file it is.
    if (stat(path.c_str(), &info) == 0) synced_[info.st_ino] = true;
    dirty_.erase(path);
  }
  // Files below `root` with bytes in them that were not synced after they were written.
  std::vector<std::string> Unsynced(const std::string& root) {
    MutexLock lock(&mutex_);
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      struct stat info = {};
      if (!entry.is_regular_file() || stat(entry.path().c_str(), &info) != 0) continue;
      const std::string path = entry.path().string();
      if (info.st_size > 0 && (dirty_.contains(path) || !synced_.contains(info.st_ino))) {
        found.push_back(entry.path().filename().string());
      }
    }
    return found;
  }

 private:
  Mutex mutex_;
  std::map<std::string, bool> dirty_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, bool> synced_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(CheckpointStoreTest, EveryFileOfASealedShardIsSynced) {
  SyncTracker tracker;
  CheckpointStore::Options options = TestOptions();
  options.faults = &tracker;
  auto store = Open(options);
  const auto shard = WriteShard(*store, 40, 1, 0, state_, EvenSlices(state_, 0, 1));
  ASSERT_TRUE(shard.ok()) << shard.status();
  // Files that are never read: a process number for messages, and files that RocksDB only writes.
  const auto is_unread = testing::AnyOf("LOCK", "IDENTITY", testing::StartsWith("OPTIONS-"));
  EXPECT_THAT(tracker.Unsynced(path_), testing::Each(is_unread));
  ASSERT_TRUE(store->Commit(*MakeManifest(TestHeader(40, 1, 1), {*shard})).ok());
  EXPECT_THAT(tracker.Unsynced(path_), testing::Each(is_unread));
}

// A disk whose write of MANIFEST waits until it is released.
class SlowDisk : public DiskFaults {
 public:
  int BeforeWrite(const std::string& path, int64_t) override {
    if (!absl::StrContains(path, "MANIFEST.tmp")) return 0;
    writing_.Notify();
    released_.WaitForNotification();
    return 0;
  }
  void AfterSync(const std::string&) override {}
  void AwaitWrite() { writing_.WaitForNotification(); }
  void Release() { released_.Notify(); }

 private:
  absl::Notification writing_, released_;
};

TEST_F(CheckpointStoreTest, StateIsReadWhileACommitWaitsForTheDisk) {
  SlowDisk disk;
  CheckpointStore::Options options = TestOptions();
  options.decides = false;
  options.faults = &disk;
  auto store = Open(options);
  const auto shard = WriteShard(*store, 40, 1, 0, state_, EvenSlices(state_, 0, 1));
  ASSERT_TRUE(shard.ok()) << shard.status();
  absl::Status committed;
  std::thread committer(
      [&] { committed = store->Commit(*MakeManifest(TestHeader(40, 1, 1), {*shard})).status(); });
  disk.AwaitWrite();
  EXPECT_EQ(store->attempt(), 1);
  EXPECT_EQ(store->generation(), 0);
  EXPECT_THAT(store->InDoubt(), SizeIs(1));
  disk.Release();
  committer.join();
  EXPECT_EQ(committed, absl::OkStatus());
  EXPECT_THAT(store->InDoubt(), testing::IsEmpty());
}

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Checkpoints of these steps, committed in this order.
std::vector<StoredDirectory> Committed(const std::vector<int64_t>& steps) {
  std::vector<StoredDirectory> committed;
  for (const int64_t step : steps) {
    committed.push_back({Stage::kCommitted, step, 1, static_cast<int64_t>(committed.size())});
  }
  return committed;
}

std::vector<int64_t> Gone(const std::vector<int64_t>& steps, const std::set<int64_t>& pinned,
                          const Retention& retention) {
  std::vector<int64_t> gone;
  for (const StoredDirectory& d : ToDelete(Committed(steps), pinned, retention)) {
    gone.push_back(d.step);
  }
  return gone;
}

TEST(RetentionTest, TheNewestAreKept) {
  EXPECT_THAT(Gone({10, 20, 30, 40}, {}, {.keep_last = 2}), ElementsAre(10, 20));
  EXPECT_THAT(Gone({10, 20}, {}, {.keep_last = 2}), IsEmpty());
}

TEST(RetentionTest, MultiplesOfKeepEveryAreKept) {
  EXPECT_THAT(Gone({0, 10, 20, 30, 40, 50}, {}, {.keep_last = 1, .keep_every = 20}),
              ElementsAre(10, 30));
}

TEST(RetentionTest, PinnedStepsAreKept) {
  EXPECT_THAT(Gone({10, 20, 30}, {10}, {.keep_last = 1}), ElementsAre(20));
}

TEST(RetentionTest, NewestIsByCommitAndNotByStep) {
  EXPECT_THAT(Gone({40, 50, 30, 35}, {}, {.keep_last = 2}), ElementsAre(40, 50));
}

TEST(RetentionTest, ReplacedCheckpointsAreDeletedEvenIfPinned) {
  const std::vector<StoredDirectory> gone =
      ToDelete(Committed({10, 20, 10}), {10}, {.keep_last = 5, .keep_every = 10});
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].serial, 0);
}

TEST(RetentionTest, ARetentionThatKeepsNothingIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRetention({.keep_last = 0})));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRetention({.keep_last = 1, .keep_every = -1})));
}

}  // namespace
}  // namespace nibble
