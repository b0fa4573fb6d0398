// Damages the files of a store in thousands of ways, one at a time: each damage is detected and
// named, or is harmless. A wrong byte is never served, and a store that has lost acknowledged
// batches is never opened.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "common/files/power_testing.h"
#include "common/rocks/rocks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"
#include "server/store/disk_testing.h"
#include "server/store/rocks_store.h"
#include "server/store/store.h"
#include "server/store/store_testing.h"

namespace nibble {
namespace {

using file_testing::kOneIn;
using file_testing::MakeDisk;
using file_testing::TempDirectory;
using store_testing::Content;
using store_testing::DiskImage;
using store_testing::FileEvent;
using store_testing::RandomBatch;
using store_testing::ReadAll;
using store_testing::Recording;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using Random = std::mt19937_64;

RocksStoreOptions DamageOptions() {
  RocksStoreOptions options;
  options.cluster = "damage";
  options.write_buffer_bytes = size_t{96} << 10;
  options.file_system = store_testing::QuickFileSystem();
  return options;
}

DiskImage::Files FilesOf(const std::string& root) {
  DiskImage::Files files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string path = entry.path().lexically_relative(root).string();
    if (entry.is_directory()) {
      files[path + "/"] = "";
      continue;
    }
    files[path] = file_testing::ContentOf(entry.path());
  }
  return files;
}

// The logs that are not empty, oldest first.
std::vector<std::string> LogsOf(const DiskImage::Files& files) {
  std::vector<std::string> logs;
  for (const auto& [path, content] : files) {
    if (absl::EndsWith(path, ".log") && !content.empty()) logs.push_back(path);
  }
  return logs;
}

// A file system on which, while it is held, no table can be created.
class HeldTables : public rocksdb::FileSystemWrapper {
 public:
  HeldTables() : FileSystemWrapper(rocks::UnsyncedFileSystem(nullptr)) {}
  const char* Name() const override { return "nibble.HeldTables"; }
  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* debug) override {
    if (absl::EndsWith(path, ".sst")) held_.wait(true);
    return FileSystemWrapper::NewWritableFile(path, options, result, debug);
  }
  void Hold() { held_ = true; }
  void Release() {
    held_ = false;
    held_.notify_all();
  }

 private:
  std::atomic<bool> held_{false};
};

// Damages one file and describes how.
std::string Damage(Random& random, const std::string& path, DiskImage::Files& files) {
  std::string& content = files[path];
  const size_t size = content.size();
  const size_t at = size == 0 ? 0 : random() % size;
  const size_t run = std::min(size - at, static_cast<size_t>(1 + random() % 64));
  switch (size == 0 ? 6 : random() % 10) {
    case 0:
    case 1:
    case 2:
    case 3:
      content[at] = static_cast<char>(content[at] ^ (1 << random() % 8));
      return absl::StrCat("one bit at ", at);
    case 4:
      for (size_t i = 0; i < run; ++i) content[at + i] = static_cast<char>(random());
      return absl::StrCat(run, " random bytes at ", at);
    case 5:
      std::fill_n(content.begin() + static_cast<std::ptrdiff_t>(at), run, '\0');
      return absl::StrCat(run, " zeros at ", at);
    case 6:
      for (size_t i = 1 + random() % 100; i > 0; --i)
        content.push_back(static_cast<char>(random()));
      return "random bytes at the end";
    case 7:
      content.resize(at);
      return absl::StrCat("cut at ", at);
    case 8:
      content.erase(at, run);
      return absl::StrCat(run, " bytes taken out at ", at);
    default:
      files.erase(path);
      return "removed";
  }
}

class StoreDamageTest : public ::testing::Test {
 protected:
  // A store with tables, a log and a trimmed journal.
  void SetUp() override {
    const auto recording = std::make_shared<Recording>(directory_.path());
    RocksStoreOptions options = DamageOptions();
    options.file_system = recording->FileSystem(recording);
    auto store = RocksStore::Open(directory_.path() + "/store", options);
    ASSERT_TRUE(store.ok()) << store.status();
    for (uint64_t i = 1; i <= 400; ++i) {
      const StoreBatch batch = RandomBatch(i, 800);
      const absl::StatusOr<uint64_t> sequence = (*store)->Commit(batch);
      ASSERT_TRUE(sequence.ok()) << sequence.status();
      expected_.Apply(*sequence, batch);
      if (i != 200) continue;
      const absl::Status trimmed = (*store)->TrimJournal(50);
      ASSERT_TRUE(trimmed.ok()) << trimmed;
    }
    expected_ = store_testing::From(expected_, 51);
    recording->Note(0);  // the process is killed here
    store->reset();
    DiskImage image;
    for (const FileEvent& event : recording->events()) {
      if (event.kind == FileEvent::Kind::kNote) killed_ = image.Current();
      image.Apply(event);
    }
    closed_ = image.Current();
  }

  // In several threads, each with a disk of its own: after a compaction that failed, RocksDB sleeps
  // for a second.
  void Check(const DiskImage::Files& good, uint64_t seed, int damages) {
    std::vector<std::string> paths;
    for (const auto& [path, content] : good) {
      if (!absl::EndsWith(path, "/")) paths.push_back(path);
    }
    std::atomic<int> next{0};
    const auto run = [&] {
      const TempDirectory disk{TempDirectory::Place::kMemory};
      for (int i = next++; i < damages && !HasFailure(); i = next++) {
        CheckOne(good, paths[static_cast<size_t>(i) % paths.size()],
                 1000 * seed + static_cast<uint64_t>(i), disk.path());
      }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) threads.emplace_back(run);
    for (std::thread& thread : threads) thread.join();
  }

  void CheckOne(const DiskImage::Files& good, const std::string& path, uint64_t seed,
                const std::string& disk) {
    Random random(seed);
    DiskImage::Files files = good;
    const std::string how = Damage(random, path, files);
    SCOPED_TRACE(absl::StrCat(path, ": ", how));
    const absl::Status found = FoundIn(files, disk).status;
    if (HasFailure()) return;
    if (found.ok()) {
      ++harmless_;
      return;
    }
    ++found_;
    // A damaged marker may look like that of a newer version.
    ASSERT_THAT(found.code(),
                AnyOf(Eq(absl::StatusCode::kDataLoss), Eq(absl::StatusCode::kFailedPrecondition)))
        << found;
    // The name of a missing log is known nowhere.
    const bool lost = !files.contains(path) && absl::EndsWith(path, ".log");
    const std::string name =
        lost ? "another .log file" : std::filesystem::path(path).filename().string();
    ASSERT_THAT(std::string(found.message()), HasSubstr(name));
  }

  struct Finding {
    bool opened = false;
    absl::Status status;  // OK if the damage has no effect: everything is served, and correctly
  };
  Finding FoundIn(const DiskImage::Files& files, const std::string& disk) const {
    MakeDisk(disk, files);
    auto store = RocksStore::Open(disk + "/store", DamageOptions());
    if (!store.ok()) return {.opened = false, .status = store.status()};
    const absl::StatusOr<Content> content = ReadAll(**store);
    if (!content.ok()) {
      EXPECT_FALSE((*store)->Verify().ok());
      return {.opened = true, .status = content.status()};
    }
    EXPECT_TRUE(*content == expected_) << "wrong content served";
    return {.opened = true, .status = absl::OkStatus()};
  }
  Finding FoundIn(const DiskImage::Files& files) const { return FoundIn(files, disk_.path()); }

  TempDirectory directory_;
  TempDirectory disk_{TempDirectory::Place::kMemory};
  Content expected_;
  DiskImage::Files closed_;
  DiskImage::Files killed_;
  std::atomic<int> harmless_{0}, found_{0};
};

TEST_F(StoreDamageTest, EveryDamageToAClosedStoreIsDetectedAndNamedOrHarmless) {
  EXPECT_TRUE(FoundIn(closed_).status.ok());
  Check(closed_, 1, 500 / kOneIn);
  EXPECT_GT(found_, 150 / kOneIn);
  RecordProperty("harmless", harmless_);
}

TEST_F(StoreDamageTest, EveryDamageToAKilledStoreIsDetectedAndNamedOrHarmless) {
  EXPECT_TRUE(FoundIn(killed_).status.ok());
  Check(killed_, 2, 500 / kOneIn);
  EXPECT_GT(found_, 150 / kOneIn);
  RecordProperty("harmless", harmless_);
}

TEST_F(StoreDamageTest, ATruncatedOrMissingLogIsDetectedEvenBeforeAnIntactOne) {
  // While no table can be written, the unflushed batches stay in two logs.
  const auto fs = std::make_shared<HeldTables>();
  RocksStoreOptions options = DamageOptions();
  options.file_system = fs;
  const TempDirectory directory;
  auto store = RocksStore::Open(directory.path() + "/store", options);
  ASSERT_TRUE(store.ok()) << store.status();
  fs->Hold();
  expected_ = {};
  DiskImage::Files good;
  for (uint64_t i = 1, behind = 0; behind < 10; ++i) {
    const StoreBatch batch = RandomBatch(i, 800);
    ASSERT_EQ((*store)->Commit(batch).value_or(0), i);
    expected_.Apply(i, batch);
    good = FilesOf(directory.path());
    if (LogsOf(good).size() == 2) ++behind;
    ASSERT_LT(i, 2000u);
  }
  fs->Release();
  store->reset();
  EXPECT_TRUE(FoundIn(good).status.ok());

  for (const std::string& log : LogsOf(good)) {
    const size_t size = good.at(log).size();
    for (size_t part = 0; part <= 8; ++part) {
      DiskImage::Files files = good;
      files[log].resize(size * part / 8);
      if (part == 8) files.erase(log);
      SCOPED_TRACE(absl::StrCat(log, " cut to ", part, " eighths, or gone"));
      const Finding found = FoundIn(files);
      EXPECT_TRUE(absl::IsDataLoss(found.status)) << found.status;
      EXPECT_FALSE(found.opened);
    }
  }
}

TEST_F(StoreDamageTest, ARefusedLogIsLeftUnchanged) {
  DiskImage::Files files = closed_;
  ASSERT_FALSE(LogsOf(files).empty());
  const std::string log = LogsOf(files).back();
  files[log].resize(files[log].size() / 2);
  const DiskImage::Files damaged = files;
  for (int i = 0; i < 2; ++i) {
    const absl::Status found = FoundIn(files).status;
    EXPECT_TRUE(absl::IsDataLoss(found)) << found;
    EXPECT_THAT(std::string(found.message()), HasSubstr("but batch 400 was acknowledged"));
    files = FilesOf(disk_.path());
    EXPECT_EQ(files[log], damaged.at(log));
  }
  // After the repair the store is complete again.
  files[log] = closed_[log];
  EXPECT_TRUE(FoundIn(files).status.ok());
}

}  // namespace
}  // namespace nibble
