// A store on a file system that is really full; needs the right to mount one.
#include <sys/mount.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/rocks_store.h"
#include "server/store/store.h"
#include "server/store/store_directory.h"
#include "server/store/store_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using store_testing::RandomBatch;

class FullDiskTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBallast = uint64_t{8} << 20;

  ~FullDiskTest() override {
    if (mounted_) (void)umount2(disk_.c_str(), MNT_DETACH);
  }

  bool Mount(const char* size, unsigned long flags = 0) {
    fs::create_directories(disk_);
    if (mount("tmpfs", disk_.c_str(), "tmpfs", flags, size) != 0) return false;
    mounted_ = true;
    return true;
  }
  absl::StatusOr<std::unique_ptr<RocksStore>> Open() {
    RocksStoreOptions options;
    options.cluster = "full";
    options.write_buffer_bytes = size_t{1} << 20;
    options.keeps_reserve = true;
    return RocksStore::Open(path_, options);
  }
  // Commits until the disk is full.
  void Fill(Store& store) {
    while (true) {
      const absl::StatusOr<uint64_t> sequence = store.Commit(RandomBatch(committed_, 20'000));
      if (!sequence.ok()) {
        EXPECT_TRUE(absl::IsResourceExhausted(sequence.status())) << sequence.status();
        return;
      }
      committed_ = *sequence;
    }
  }
  uint64_t Free() const { return fs::space(disk_).available; }
  bool HasReserve() const { return fs::exists(path_ + "/" + kReserveName); }

  const file_testing::TempDirectory directory_;
  const std::string disk_ = directory_.path() + "/disk";
  const std::string path_ = disk_ + "/store";
  const std::string ballast_ = disk_ + "/ballast";
  uint64_t committed_ = 0;
  bool mounted_ = false;
};

TEST_F(FullDiskTest, AStoreOpensFromItsReserveAndThenSaysHowManyBytesItNeeds) {
  if (!Mount("size=32m")) GTEST_SKIP() << "cannot mount a file system: " << std::strerror(errno);
  std::ofstream(ballast_) << std::string(kBallast, 'x');
  absl::StatusOr<std::unique_ptr<RocksStore>> store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE(HasReserve());
  Fill(**store);
  store->reset();

  // It opens, has everything that was acknowledged, and serves.
  const uint64_t acknowledged = committed_;
  store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_FALSE(HasReserve());
  EXPECT_GT((*store)->MissingReserve(), 0u);
  EXPECT_GE((*store)->Info().last_sequence, acknowledged);
  committed_ = (*store)->Info().last_sequence;
  Fill(**store);
  EXPECT_GT(committed_, acknowledged);
  store->reset();

  // Without a reserve it is refused, sooner or later, before it writes anything.
  store = Open();
  for (int openings = 0; store.ok(); ++openings) {
    ASSERT_LT(openings, 100);
    committed_ = (*store)->Info().last_sequence;
    Fill(**store);
    store->reset();
    store = Open();
  }
  ASSERT_TRUE(absl::IsResourceExhausted(store.status())) << store.status();
  const std::string message(store.status().message());
  std::smatch numbers;
  ASSERT_TRUE(std::regex_search(
      message, numbers, std::regex("needs ([0-9]+) bytes of its disk, and ([0-9]+) are free")))
      << message;
  const uint64_t needed = std::stoull(numbers[1]);
  const uint64_t free = std::stoull(numbers[2]);
  EXPECT_EQ(free, Free());
  EXPECT_GT(needed, free);
  for (int start = 0; start < 3; ++start) {
    EXPECT_EQ(Open().status(), store.status());
    EXPECT_EQ(Free(), free);
  }
  constexpr uint64_t kPage = 4096;
  fs::resize_file(ballast_, kBallast - (needed - free + kPage - 1) / kPage * kPage);
  store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_GE((*store)->Info().last_sequence, committed_);
  store->reset();

  // With room the reserve is kept again.
  ASSERT_TRUE(Mount("size=128m", MS_REMOUNT)) << std::strerror(errno);
  store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE(HasReserve());
  EXPECT_EQ((*store)->MissingReserve(), 0u);
  EXPECT_TRUE((*store)->Verify().ok()) << (*store)->Verify();
  // Also by a store that is open meanwhile.
  store->reset();
  fs::remove(path_ + "/" + kReserveName);
  const fs::space_info space = fs::space(disk_);
  const std::string tight =
      absl::StrCat("size=", space.capacity - space.available + (uint64_t{9} << 20));
  ASSERT_TRUE(Mount(tight.c_str(), MS_REMOUNT)) << std::strerror(errno);
  store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_GT((*store)->MissingReserve(), 0u);
  ASSERT_TRUE(Mount("size=128m", MS_REMOUNT)) << std::strerror(errno);
  for (int i = 0; i < kMarksPerSync; ++i) ASSERT_TRUE((*store)->Commit({}).ok());
  EXPECT_EQ((*store)->MissingReserve(), 0u);
  EXPECT_TRUE(HasReserve());
  store->reset();
}

}  // namespace
}  // namespace nibble
