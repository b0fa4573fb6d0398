// A full disk: the checkpoint being written is dropped and takes no space, older ones stay and
// load, and once there is space the same store can be written again.
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/files/files.h"
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
using file_testing::WriteHook;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Every write from number `fail_from` on fails with `error`, until it is released.
class FailingDisk {
 public:
  FailingDisk()
      : hook_([this](const std::string& path, int64_t) {
          const bool fails = writes_++ >= fail_from_;
          if (fails && failed_.empty()) failed_ = path;
          return fails ? error_.load() : 0;
        }) {}

  DiskFaults* faults() { return &hook_; }
  void FailFrom(int64_t write, int error) {
    writes_ = 0;
    fail_from_ = write;
    error_ = error;
    failed_.clear();
  }
  void LetGo() { fail_from_ = INT64_MAX; }
  // The file whose write failed first; empty if none did.
  const std::string& failed() const { return failed_; }

 private:
  std::atomic<int64_t> writes_{0};
  std::atomic<int64_t> fail_from_{INT64_MAX};
  std::atomic<int> error_{0};
  std::string failed_;  // the hook's calls exclude each other
  WriteHook hook_;
};

int CountDirectories(const std::string& path) { return static_cast<int>(ScanStore(path)->size()); }

void ExpectLoads(const CheckpointStore& store, int64_t step, const State& state) {
  const auto reader = store.OpenCheckpoint(step);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ(LoadsExactly(**reader, state), absl::OkStatus());
}

class StoreFullTest : public ::testing::Test {
 protected:
  const TempDirectory directory_;
  const std::string path_ = directory_.path() + "/store";
  const State old_state_ = RandomState(1, 4, 2000);
  const State new_state_ = RandomState(2, 4, 2000);
};

TEST_F(StoreFullTest, WhicheverWriteFindsTheDiskFullTheOldCheckpointStays) {
  FailingDisk disk;
  CheckpointStore::Options options = TestOptions();
  options.faults = disk.faults();
  auto store = CheckpointStore::Open(path_, options);
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_EQ(Save(**store, 10, 1, 1, old_state_), absl::OkStatus());
  const int64_t space = TreeBytes(path_);
  // Each step of writing, sealing and committing, until a checkpoint fits before the failure.
  int64_t write = 0;
  for (;; ++write) {
    SCOPED_TRACE(write);
    ASSERT_LT(write, 1000);
    disk.FailFrom(write, ENOSPC);
    const absl::Status status = Save(**store, 20, 1, 2, new_state_);
    disk.LetGo();
    if (status.ok()) break;
    ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr(path_));
    ExpectLoads(**store, 10, old_state_);
    ASSERT_TRUE(absl::IsNotFound((*store)->OpenCheckpoint(20).status()));
    // Discard drops the shards sealed before, and then everything is as before.
    ASSERT_EQ((*store)->Discard(20, 1), absl::OkStatus());
    ASSERT_EQ(TreeBytes(path_), space);
    ASSERT_EQ(CountDirectories(path_), 1);
    ASSERT_EQ((*store)->LatestGood()->reader->manifest().header.step, 10);
  }
  EXPECT_GT(write, 20);
  ExpectLoads(**store, 20, new_state_);
  ExpectLoads(**store, 10, old_state_);
}

TEST_F(StoreFullTest, ACommitThatFailedForLackOfSpaceCanBeRetried) {
  FailingDisk disk;
  CheckpointStore::Options options = TestOptions();
  options.faults = disk.faults();
  auto store = CheckpointStore::Open(path_, options);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto shard = WriteShard(**store, 20, 1, 0, new_state_, EvenSlices(new_state_, 0, 1));
  ASSERT_TRUE(shard.ok()) << shard.status();
  const Manifest manifest = *MakeManifest(TestHeader(20, 1, 1), {*shard});
  disk.FailFrom(0, ENOSPC);
  const absl::Status status = (*store)->Commit(manifest).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(disk.failed().substr(0, path_.size()), path_);
  EXPECT_TRUE(absl::IsNotFound((*store)->LatestGood().status()));
  disk.LetGo();
  ASSERT_TRUE((*store)->Commit(manifest).ok());
  ExpectLoads(**store, 20, new_state_);
}

TEST_F(StoreFullTest, OtherDiskErrorsAreNotReportedAsAFullDisk) {
  FailingDisk disk;
  CheckpointStore::Options options = TestOptions();
  options.faults = disk.faults();
  auto store = CheckpointStore::Open(path_, options);
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_EQ(Save(**store, 10, 1, 1, old_state_), absl::OkStatus());
  for (int64_t write = 0; write < 8; ++write) {
    disk.FailFrom(write, EIO);
    const absl::Status status = Save(**store, 20, 1, 1, new_state_);
    disk.LetGo();
    EXPECT_FALSE(status.ok() || absl::IsResourceExhausted(status)) << status;
    ExpectLoads(**store, 10, old_state_);
  }
}

TEST_F(StoreFullTest, AStoreOnAFullDiskCanBeOpenedAndRead) {
  {
    auto store = CheckpointStore::Open(path_, TestOptions());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ(Save(**store, 10, 1, 1, old_state_), absl::OkStatus());
  }
  FailingDisk disk;
  disk.FailFrom(0, ENOSPC);
  CheckpointStore::Options options = TestOptions();
  options.faults = disk.faults();
  const auto store = CheckpointStore::Open(path_, options);
  ASSERT_TRUE(store.ok()) << store.status();
  ExpectLoads(**store, 10, old_state_);
  // Space can also be freed.
  EXPECT_EQ((*store)->Delete(10), absl::OkStatus());
}

TEST_F(StoreFullTest, TheFileSizeLimitOfTheProcessIsReportedAsAFullDisk) {
  auto store = CheckpointStore::Open(path_, TestOptions());
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_EQ(Save(**store, 10, 1, 1, old_state_), absl::OkStatus());
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit tight = {4096, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const absl::Status status = Save(**store, 20, 1, 1, new_state_);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  EXPECT_EQ(CountDirectories(path_), 1);
  ExpectLoads(**store, 10, old_state_);
  ASSERT_EQ(Save(**store, 20, 1, 1, new_state_), absl::OkStatus());
  ExpectLoads(**store, 20, new_state_);
}

// A really full file system; needs the right to mount one.
TEST_F(StoreFullTest, AFullFileSystemIsUsableAgainOnceItHasSpace) {
  const std::string mounted = directory_.path() + "/small";
  std::filesystem::create_directory(mounted);
  if (mount("tmpfs", mounted.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "cannot mount a file system: " << std::strerror(errno);
  }
  const absl::Cleanup unmount = [&mounted] { (void)umount2(mounted.c_str(), MNT_DETACH); };
  CheckpointStore::Options options = TestOptions();
  options.file_bytes = int64_t{1} << 30;
  auto store = CheckpointStore::Open(mounted + "/store", options);
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_EQ(Save(**store, 10, 1, 1, old_state_), absl::OkStatus());

  const std::string ballast = mounted + "/ballast";
  int64_t failures = 0;
  // Leaves less and less, so that the disk is full at every phase of a checkpoint.
  for (int64_t left = 120'000; left >= 0; left -= 6000) {
    const auto space = std::filesystem::space(mounted);
    std::ofstream(ballast) << std::string(space.available - static_cast<uint64_t>(left), 'x');
    const absl::Status status = Save(**store, 20, 1, 1, new_state_);
    std::filesystem::remove(ballast);
    if (status.ok()) {
      ASSERT_EQ((*store)->Delete(20), absl::OkStatus());
      continue;
    }
    ++failures;
    ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
    ASSERT_EQ((*store)->Discard(20, 1), absl::OkStatus());
    ASSERT_EQ(CountDirectories(mounted + "/store"), 1);
    ExpectLoads(**store, 10, old_state_);
  }
  EXPECT_GT(failures, 5);
  ASSERT_EQ(Save(**store, 20, 1, 1, new_state_), absl::OkStatus());
  ExpectLoads(**store, 20, new_state_);
  store->reset();
}

}  // namespace
}  // namespace nibble
