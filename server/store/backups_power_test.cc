// The power is lost after any operation of a backup or a restoration.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "common/files/power_testing.h"
#include "gtest/gtest.h"
#include "rocksdb/file_system.h"
#include "server/store/backups.h"
#include "server/store/disk_testing.h"
#include "server/store/rocks_store.h"
#include "server/store/store.h"
#include "server/store/store_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using file_testing::kOneIn;
using file_testing::MakeDisk;
using file_testing::TempDirectory;
using store_testing::Content;
using store_testing::DiskImage;
using store_testing::FileEvent;
using store_testing::RandomBatch;
using store_testing::ReadAll;
using store_testing::Recording;

class BackupsPowerTest : public ::testing::Test {
 protected:
  static std::unique_ptr<RocksStore> Open(const std::string& path,
                                          std::shared_ptr<rocksdb::FileSystem> fs) {
    RocksStoreOptions options;
    options.cluster = "test";
    options.write_buffer_bytes = size_t{64} << 10;
    options.file_system = std::move(fs);
    auto store = RocksStore::Open(path, options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  static void Fill(Store& store, uint64_t batches) {
    for (uint64_t i = 0; i < batches; ++i) ASSERT_TRUE(store.Commit(RandomBatch(i, 500)).ok());
  }
  // Everything below `root`, with which a recording begins.
  static DiskImage::Files Present(const std::string& root) {
    DiskImage::Files files;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      const std::string name = entry.path().lexically_relative(root).string();
      if (entry.is_directory()) {
        files[name + "/"] = "";
      } else {
        files[name] = file_testing::ContentOf(entry.path().string());
      }
    }
    return files;
  }
  // Calls `check` with the number noted last and disk_ as it is after a power failure before each
  // event: only what was synced is there, or all names are, or some of everything.
  void FailEverywhere(DiskImage image, const std::function<void(uint64_t noted)>& check) {
    std::mt19937_64 random(20260101);
    uint64_t noted = 0;
    const auto& events = recording_->events();
    ASSERT_GT(events.size(), 20u);
    for (size_t i = 0; i <= events.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("before event ", i, " of ", events.size()));
      if (i % kOneIn == 0 || i == events.size()) {
        for (const auto& files : {image.Synced(), image.SyncedBytes(), image.Torn(random)}) {
          MakeDisk(disk_.path(), files);
          check(noted);
          if (HasFailure()) return;
        }
      }
      if (i == events.size()) break;
      if (events[i].kind == FileEvent::Kind::kNote) noted = events[i].number;
      image.Apply(events[i]);
    }
  }

  TempDirectory directory_;
  TempDirectory disk_{TempDirectory::Place::kMemory};
  const std::shared_ptr<Recording> recording_ = std::make_shared<Recording>(directory_.path());
};

TEST_F(BackupsPowerTest, ARestoredStoreIsWholeOrNoStore) {
  Content content;
  {
    const auto store = Open(directory_.Path("store"), nullptr);
    Fill(*store, 300);
    content = *ReadAll(*store);
    ASSERT_TRUE(store->AddBackup(directory_.Path("backups"), 10).ok());
  }
  DiskImage image = recording_->Begin(Present(directory_.path()));
  const auto restored = RestoreBackup(directory_.Path("backups"), 0, directory_.Path("restored"),
                                      recording_->FileSystem(recording_));
  ASSERT_TRUE(restored.ok()) << restored.status();
  recording_->Note(1);
  FailEverywhere(std::move(image), [&](uint64_t noted) {
    const std::string path = disk_.Path("restored");
    if (noted == 0 && !fs::exists(path + "/STORE")) return;
    EXPECT_TRUE(IsRestored(path));
    const auto store = Open(path, store_testing::QuickFileSystem());
    ASSERT_NE(store, nullptr);
    EXPECT_TRUE(*ReadAll(*store) == content);
  });
}

TEST_F(BackupsPowerTest, AMadeBackupStaysWhileTheNextIsMade) {
  fs::create_directories(directory_.Path("backups"));
  DiskImage image = recording_->Begin(Present(directory_.path()));
  Content first;
  {
    const auto store = Open(directory_.Path("store"), recording_->FileSystem(recording_));
    Fill(*store, 60);
    first = *ReadAll(*store);
    for (const uint64_t backup : {1, 2}) {
      ASSERT_TRUE(store->AddBackup(directory_.Path("backups"), 10).ok());
      recording_->Note(backup);
      Fill(*store, 10);
    }
  }
  FailEverywhere(std::move(image), [&](uint64_t noted) {
    const std::string backups = disk_.Path("backups");
    for (uint32_t id = 1; id <= noted; ++id) {
      const absl::Status status = CheckBackup(backups, id);
      EXPECT_TRUE(status.ok()) << status;
    }
  });
  // The disk of the last moment.
  ASSERT_TRUE(RestoreBackup(disk_.Path("backups"), 1, disk_.Path("restored")).ok());
  EXPECT_TRUE(*ReadAll(*Open(disk_.Path("restored"), nullptr)) == first);
}

}  // namespace
}  // namespace nibble
