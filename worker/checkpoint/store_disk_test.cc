// A store and its disk: every file is synced, a slow disk delays only those who wait for it, and a
// file system need not support direct writes.
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "common/files/files_testing.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using checkpoint_testing::EvenSlices;
using checkpoint_testing::LoadsExactly;
using checkpoint_testing::RandomState;
using checkpoint_testing::State;
using checkpoint_testing::TestHeader;
using checkpoint_testing::TestOptions;
using checkpoint_testing::WriteShard;
using file_testing::TempDirectory;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StoreDiskTest : public ::testing::Test {
 protected:
  std::unique_ptr<CheckpointStore> Open(const CheckpointStore::Options& options = TestOptions()) {
    absl::StatusOr<std::unique_ptr<CheckpointStore>> store = CheckpointStore::Open(path_, options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  const TempDirectory directory_;
  const std::string path_ = directory_.path() + "/checkpoints";
  const State state_ = RandomState(1, 6, 2000);
};

// Needs the right to mount a file system.
TEST_F(StoreDiskTest, AFileSystemWithoutDirectWritesWorksAndIsReported) {
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
    // A file may be renamed after it was written, so files are told apart by their inodes.
    if (stat(path.c_str(), &info) == 0) synced_[info.st_ino] = true;
    dirty_.erase(path);
  }
  // The files below `root` that have bytes which were not synced since they were written.
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

TEST_F(StoreDiskTest, EveryFileOfASealedShardIsSynced) {
  SyncTracker tracker;
  CheckpointStore::Options options = TestOptions();
  options.faults = &tracker;
  auto store = Open(options);
  const auto shard = WriteShard(*store, 40, 1, 0, state_, EvenSlices(state_, 0, 1));
  ASSERT_TRUE(shard.ok()) << shard.status();
  // Files that are never read: LOCK has a process number for messages, RocksDB only writes the
  // others.
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

TEST_F(StoreDiskTest, StateIsReadWhileACommitWaitsForTheDisk) {
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

}  // namespace
}  // namespace nibble
