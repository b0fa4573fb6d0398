// Backups of a store that is in use: complete, incremental, refused when damaged, and restored as a
// store that knows that it was restored.
#include "server/store/backups.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files/file_lock.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/rocks_store.h"
#include "server/store/store.h"
#include "server/store/store_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using store_testing::Content;
using store_testing::RandomBatch;
using store_testing::ReadAll;
using ::testing::HasSubstr;

class BackupsTest : public ::testing::Test {
 protected:
  static std::unique_ptr<RocksStore> Open(const std::string& path,
                                          const std::string& cluster = "test") {
    RocksStoreOptions options;
    options.cluster = cluster;
    auto store = RocksStore::Open(path, options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  static void Fill(Store& store, uint64_t batches) {
    for (uint64_t i = 0; i < batches; ++i) ASSERT_TRUE(store.Commit(RandomBatch(i, 200)).ok());
  }
  // The number of the new backup.
  uint32_t Add(RocksStore& store, int keep = 100) {
    const auto made = store.AddBackup(backups_, keep);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? made->id : 0;
  }
  std::vector<uint32_t> Ids() {
    std::vector<uint32_t> ids;
    const StoreBackups listed = ListBackups(backups_).value();
    for (const StoreBackup& backup : listed.intact) ids.push_back(backup.id);
    return ids;
  }
  // Files of all backups whose path contains `part`.
  std::vector<std::string> Files(const std::string& part) {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(backups_)) {
      const std::string path = entry.path().string();
      if (entry.is_regular_file() && absl::StrContains(path, part)) files.push_back(path);
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  static void FlipByte(const std::string& path, std::streamoff at) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(byte);
    ASSERT_TRUE(file.good()) << path;
  }

  file_testing::TempDirectory directory_;
  const std::string path_ = directory_.Path("store");
  const std::string backups_ = directory_.Path("backups");
  const std::string restored_ = directory_.Path("restored");
};

TEST_F(BackupsTest, ARestoredStoreHasEverythingBeforeTheBackupAndKnowsThatItWasRestored) {
  Content content;
  {
    const auto store = Open(path_);
    Fill(*store, 30);
    ASSERT_TRUE(store->TrimJournal(10).ok());
    content = *ReadAll(*store);
    ASSERT_EQ(Add(*store), 1u);
    Fill(*store, 5);  // not in the backup
  }
  const auto backup = RestoreBackup(backups_, 0, restored_);
  ASSERT_TRUE(backup.ok()) << backup.status();
  EXPECT_EQ(backup->cluster, "test");
  EXPECT_EQ(backup->last_sequence, 30u);
  EXPECT_TRUE(IsRestored(restored_));
  EXPECT_FALSE(IsRestored(path_));
  const auto store = Open(restored_);
  EXPECT_EQ(*ReadAll(*store), content);
  EXPECT_EQ(store->Commit({}).value(), 31u);
  // The mark stays until the new epoch is durable.
  EXPECT_TRUE(IsRestored(restored_));
  EXPECT_TRUE(ClearRestored(restored_).ok());
  EXPECT_FALSE(IsRestored(restored_));
}

TEST_F(BackupsTest, ABackupUnderLoadHasEverythingAcknowledgedBeforeItAndAPrefixOfTheRest) {
  const auto store = Open(path_);
  std::atomic<bool> stop = false;
  std::thread load([&] {
    for (uint64_t i = 0; !stop; ++i) ASSERT_TRUE(store->Commit(RandomBatch(i, 200)).ok());
  });
  std::vector<uint64_t> acknowledged;
  for (int i = 0; i < 4; ++i) {
    const uint64_t until = store->Info().last_sequence + 50;
    while (store->Info().last_sequence < until) std::this_thread::yield();
    acknowledged.push_back(store->Info().last_sequence);
    Add(*store);
  }
  stop = true;
  load.join();
  const Content full = *ReadAll(*store);
  for (uint32_t id = 1; id <= 4; ++id) {
    const std::string path = absl::StrCat(restored_, id);
    ASSERT_TRUE(RestoreBackup(backups_, id, path).ok());
    const auto copy = Open(path);
    const uint64_t last = copy->Info().last_sequence;
    EXPECT_GE(last, acknowledged[id - 1]);
    Content prefix;  // what the first `last` batches make
    for (uint64_t i = 0; i < last; ++i) prefix.Apply(i + 1, RandomBatch(i, 200));
    EXPECT_EQ(*ReadAll(*copy), prefix);
  }
  EXPECT_TRUE(store->Verify().ok());
}

TEST_F(BackupsTest, BackupsShareTheTablesThatDidNotChange) {
  const auto store = Open(path_);
  Fill(*store, 200);
  Add(*store);
  const size_t first = Files(".sst").size();
  Add(*store);
  EXPECT_EQ(Files(".sst").size(), first);
  Fill(*store, 1);
  Add(*store);
  EXPECT_GT(Files(".sst").size(), first);
}

TEST_F(BackupsTest, TheOldestAreRemovedButNeverThoseOfALaterState) {
  {
    const auto store = Open(path_);
    for (int i = 0; i < 5; ++i) {
      Fill(*store, 1);
      Add(*store, 3);
    }
    EXPECT_EQ(Ids(), (std::vector<uint32_t>{3, 4, 5}));
  }
  // The store is lost, and an empty one takes its place.
  fs::remove_all(path_);
  const auto store = Open(path_);
  for (int i = 0; i < 3; ++i) Add(*store, 1);
  EXPECT_EQ(Ids(), (std::vector<uint32_t>{3, 4, 5, 8}));
}

TEST_F(BackupsTest, ADamagedFileIsNamedByCheckAndRefusedByRestore) {
  {
    const auto store = Open(path_);
    Fill(*store, 50);
    Add(*store);
  }
  ASSERT_TRUE(CheckBackup(backups_, 1).ok());
  std::vector<std::string> files = Files("/shared_checksum/");
  for (const std::string& file : Files("/private/")) files.push_back(file);
  ASSERT_GE(files.size(), 5u);
  for (const std::string& file : files) {
    if (fs::file_size(file) == 0) continue;
    const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
    FlipByte(file, middle);
    const std::string name = fs::path(file).filename().string();
    const absl::Status checked = CheckBackup(backups_, 1);
    EXPECT_TRUE(absl::IsDataLoss(checked)) << file << ": " << checked;
    EXPECT_THAT(std::string(checked.message()), HasSubstr(name));
    const absl::Status restored = RestoreBackup(backups_, 1, restored_).status();
    EXPECT_TRUE(absl::IsDataLoss(restored)) << file << ": " << restored;
    EXPECT_FALSE(fs::exists(restored_));
    FlipByte(file, middle);
  }
  EXPECT_TRUE(CheckBackup(backups_, 1).ok());
}

TEST_F(BackupsTest, AMissingOrShortFileIsNamedAndTheBackupBeforeItStaysUsable) {
  const auto store = Open(path_);
  Fill(*store, 50);
  Add(*store);
  const std::vector<std::string> before = Files(".sst");
  Fill(*store, 50);
  Add(*store);
  std::string added;
  for (const std::string& file : Files(".sst")) {
    if (std::find(before.begin(), before.end(), file) == before.end()) added = file;
  }
  ASSERT_FALSE(added.empty());
  fs::remove(added);
  const StoreBackups listed = ListBackups(backups_).value();
  ASSERT_EQ(listed.damaged.size(), 1u);
  EXPECT_EQ(listed.damaged[0].id, 2u);
  EXPECT_THAT(listed.damaged[0].why.ToString(), HasSubstr(fs::path(added).filename().string()));
  // The newest is not silently replaced by an older one.
  const absl::Status newest = RestoreBackup(backups_, 0, restored_).status();
  EXPECT_TRUE(absl::IsDataLoss(newest)) << newest;
  EXPECT_THAT(std::string(newest.message()), HasSubstr("intact backups: 1"));
  EXPECT_TRUE(RestoreBackup(backups_, 1, restored_).ok());
}

TEST_F(BackupsTest, ADamagedSharedFileFailsTheNextBackup) {
  const auto store = Open(path_);
  Fill(*store, 50);
  Add(*store);
  const std::string file = Files(".sst").front();
  FlipByte(file, 100);
  const absl::Status status = store->AddBackup(backups_, 100).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(fs::path(file).filename().string()));
  EXPECT_EQ(Ids(), (std::vector<uint32_t>{1}));
  EXPECT_TRUE(store->Health().ok());
}

TEST_F(BackupsTest, ADamagedDescriptionIsRefused) {
  const auto store = Open(path_);
  Add(*store);
  const std::string meta = backups_ + "/meta/1";
  std::string text = file_testing::ContentOf(meta);
  // The description is in hexadecimal: change a digit of the sequence number's line.
  const size_t at = text.find("73657175656E636520");
  ASSERT_NE(at, std::string::npos) << text;
  text[at + 19] = text[at + 19] == '1' ? '2' : '1';
  std::ofstream(meta) << text;
  const absl::Status status = RestoreBackup(backups_, 1, restored_).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("its description is damaged"));
}

TEST_F(BackupsTest, ABackupOfANewerVersionIsRefusedNamingBoth) {
  const auto store = Open(path_);
  Add(*store);
  const std::string meta = backups_ + "/meta/1";
  std::string text = file_testing::ContentOf(meta);
  const std::string version = "76657273696F6E2031";  // "version 1" in hexadecimal
  const size_t at = text.find(version);
  ASSERT_NE(at, std::string::npos) << text;
  text[at + version.size() - 1] = '2';
  std::ofstream(meta) << text;
  const absl::Status status = RestoreBackup(backups_, 0, restored_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("has format version 2, this program knows up to 1"));
}

TEST_F(BackupsTest, WhatCannotBeBackedUpOrRestoredIsRefusedWithNames) {
  const auto store = Open(path_);
  Add(*store);
  const auto other = Open(directory_.Path("other"), "other");
  const absl::Status foreign = other->AddBackup(backups_, 1).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(foreign)) << foreign;
  EXPECT_THAT(std::string(foreign.message()),
              HasSubstr("belongs to cluster \"test\", not to \"other\""));
  {
    const auto lock = FileLock::TryAcquire(backups_ + "/LOCK");
    EXPECT_TRUE(absl::IsUnavailable(store->AddBackup(backups_, 1).status()));
  }
  const absl::Status missing = RestoreBackup(backups_, 7, restored_).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no backup 7"));
  EXPECT_TRUE(absl::IsNotFound(ListBackups(directory_.Path("none")).status()));
  fs::create_directories(restored_);
  std::ofstream(restored_ + "/mine") << "mine";
  const absl::Status full = RestoreBackup(backups_, 1, restored_).status();
  EXPECT_TRUE(absl::IsAlreadyExists(full)) << full;
  EXPECT_TRUE(fs::exists(restored_ + "/mine"));
}

}  // namespace
}  // namespace nibble
