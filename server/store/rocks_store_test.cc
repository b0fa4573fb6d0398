// Promises of a store on disk beyond those of every store: its directory, its lock and its copies.
#include "server/store/rocks_store.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/store.h"
#include "server/store/store_directory.h"
#include "server/store/store_testing.h"

namespace nibble {
namespace {

using store_testing::Content;
using store_testing::RandomBatch;
using store_testing::ReadAll;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RocksStoreTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<RocksStore>> Open(const std::string& path) {
    RocksStoreOptions options;
    options.cluster = "test";
    return RocksStore::Open(path, options);
  }
  void Fill(Store& store, uint64_t batches) {
    for (uint64_t i = 0; i < batches; ++i) ASSERT_TRUE(store.Commit(RandomBatch(i, 200)).ok());
  }

  file_testing::TempDirectory directory_;
  const std::string path_ = directory_.path() + "/store";
};

TEST_F(RocksStoreTest, ASecondOpeningIsRefusedNamingTheProcessWithTheLock) {
  auto store = Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Status second = Open(path_).status();
  EXPECT_TRUE(absl::IsUnavailable(second)) << second;
  EXPECT_THAT(std::string(second.message()),
              HasSubstr(absl::StrCat("is locked by process ", getpid())));
  store->reset();
  EXPECT_TRUE(Open(path_).ok());
}

TEST_F(RocksStoreTest, ABackupIsAConsistentSnapshotThatOpensAsAStore) {
  auto store = Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  Fill(**store, 30);
  ASSERT_TRUE((*store)->TrimJournal(10).ok());
  const Content content = *ReadAll(**store);
  const std::string copy = directory_.path() + "/copy";
  const absl::Status status = (*store)->Backup(copy);
  ASSERT_TRUE(status.ok()) << status;
  Fill(**store, 5);  // not in the copy
  auto copied = Open(copy);
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ((*copied)->Info().last_sequence, 30u);
  EXPECT_EQ(*ReadAll(**copied), content);
  EXPECT_TRUE((*copied)->Verify().ok()) << (*copied)->Verify();
  // Store and copy are independent.
  EXPECT_EQ((*copied)->Commit({}).value(), 31u);
  EXPECT_EQ((*store)->Commit({}).value(), 36u);
  EXPECT_TRUE((*store)->Verify().ok()) << (*store)->Verify();
}

TEST_F(RocksStoreTest, ABackupToAnExistingPathIsRefusedAndLeavesItUnchanged) {
  auto store = Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  const std::string copy = directory_.path() + "/copy";
  std::ofstream(copy) << "mine";
  const absl::Status status = (*store)->Backup(copy);
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_EQ(std::filesystem::file_size(copy), 4u);
}

TEST_F(RocksStoreTest, AnUnfinishedBackupDoesNotOpenAsAStore) {
  auto store = Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  const std::string copy = directory_.path() + "/copy";
  ASSERT_TRUE((*store)->Backup(copy).ok());
  std::filesystem::remove(copy + "/STORE");
  const absl::Status status = Open(copy).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("STORE is missing"));
}

TEST_F(RocksStoreTest, ADirectoryWithOtherFilesIsRefusedAndLeftUnchanged) {
  std::filesystem::create_directory(path_);
  std::ofstream(path_ + "/thesis.tex") << "x";
  const absl::Status status = Open(path_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("thesis.tex"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/STORE"));
}

TEST_F(RocksStoreTest, AStoreOfANewerVersionIsRefusedNamingBothAndLeftUnchanged) {
  { ASSERT_TRUE(Open(path_).ok()); }
  std::ofstream(path_ + "/STORE") << "nibble coordinator store\nversion 7\n";
  const absl::Status status = Open(path_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("version 7"), HasSubstr("up to 1")));
}

TEST_F(RocksStoreTest, ADatabaseOfAnotherClusterBehindThisClustersMarkerIsRefused) {
  { ASSERT_TRUE(Open(path_).ok()); }
  RocksStoreOptions options;
  options.cluster = "other";
  const std::string other = directory_.path() + "/other";
  { ASSERT_TRUE(RocksStore::Open(other, options).ok()); }
  std::filesystem::remove_all(path_ + "/db");
  std::filesystem::rename(other + "/db", path_ + "/db");
  const absl::Status status = Open(path_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cluster \"other\", not to \"test\""));
}

TEST_F(RocksStoreTest, AMissingMarkOrManifestPointerIsNotMistakenForANewStore) {
  {
    auto store = Open(path_);
    ASSERT_TRUE(store.ok()) << store.status();
    Fill(**store, 3);
  }
  std::filesystem::rename(path_ + "/ACKNOWLEDGED", directory_.path() + "/mark");
  absl::Status status = Open(path_).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ACKNOWLEDGED is missing"));
  std::filesystem::rename(path_ + "/db/CURRENT", directory_.path() + "/current");
  status = Open(path_).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("CURRENT is missing"));
  std::filesystem::rename(directory_.path() + "/current", path_ + "/db/CURRENT");
  std::filesystem::rename(directory_.path() + "/mark", path_ + "/ACKNOWLEDGED");
  auto store = Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->Info().last_sequence, 3u);
}

TEST_F(RocksStoreTest, DamageToATableOfAnOpenStoreIsFoundByVerifyNamingTheFile) {
  auto store = Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  Fill(**store, 30);
  ASSERT_TRUE((*store)->Backup(directory_.path() + "/copy").ok());  // makes tables
  std::string name;
  for (const auto& entry : std::filesystem::directory_iterator(path_ + "/db")) {
    if (entry.path().extension() != ".sst") continue;
    name = entry.path().filename().string();
    std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
    const int old = file.get();
    file.seekp(0);
    file.put(static_cast<char>(old ^ 1));
    break;
  }
  ASSERT_FALSE(name.empty());
  const absl::Status status = (*store)->Verify();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(name));
}

TEST_F(RocksStoreTest, ATrimOfManyRecordsSucceedsAndLastsAcrossARestart) {
  {
    auto store = Open(path_);
    ASSERT_TRUE(store.ok()) << store.status();
    for (int i = 0; i < 2999; ++i) {
      ASSERT_TRUE((*store)->Append({}, [](absl::Status) {}).ok());
    }
    ASSERT_TRUE((*store)->Commit({}).ok());
    ASSERT_TRUE((*store)->TrimJournal(2500).ok());
    EXPECT_TRUE((*store)->Verify().ok()) << (*store)->Verify();
  }
  auto store = Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->Info().first_sequence, 2501u);
  EXPECT_EQ(ReadAll(**store)->journal.size(), 500u);
}

// A file or directory, and how it is removed while the store is open.
struct Removal {
  const char* name;
  std::function<void(const std::string& path)> remove;
};

class RemovedUnderneath : public RocksStoreTest, public ::testing::WithParamInterface<Removal> {};

TEST_P(RemovedUnderneath, NoBatchIsAcknowledgedThatTheNextOpeningWouldNotFind) {
  auto store = Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  Fill(**store, 30);
  ASSERT_EQ((*store)->CheckPlace(), absl::OkStatus());
  GetParam().remove(path_);
  const absl::Status refused = (*store)->Commit(RandomBatch(99, 200)).status();
  EXPECT_TRUE(absl::IsNotFound(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(path_));
  EXPECT_EQ((*store)->Health(), refused);
  EXPECT_EQ((*store)->Commit(RandomBatch(100, 200)).status(), refused);
  EXPECT_EQ((*store)->Info().last_sequence, 30);
}

TEST_P(RemovedUnderneath, IsNoticedWithoutAWrite) {
  auto store = Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  Fill(**store, 30);
  GetParam().remove(path_);
  EXPECT_TRUE(absl::IsNotFound((*store)->CheckPlace()));
  EXPECT_TRUE(absl::IsNotFound((*store)->Health()));
}

void RemoveEnding(const std::string& directory, const std::string& ending) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (absl::EndsWith(entry.path().string(), ending)) std::filesystem::remove(entry.path());
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, RemovedUnderneath,
    ::testing::Values(
        Removal{"Directory", [](const std::string& path) { std::filesystem::remove_all(path); }},
        Removal{"DirectoryReplacedByAnEmptyOne",
                [](const std::string& path) {
                  std::filesystem::remove_all(path);
                  std::filesystem::create_directory(path);
                }},
        Removal{"DirectoryMovedAway",
                [](const std::string& path) { std::filesystem::rename(path, path + ".old"); }},
        Removal{"DirectoryReplacedByACopy",
                [](const std::string& path) {
                  std::filesystem::rename(path, path + ".old");
                  std::filesystem::copy(path + ".old", path,
                                        std::filesystem::copy_options::recursive);
                }},
        Removal{"Database",
                [](const std::string& path) { std::filesystem::remove_all(path + "/db"); }},
        Removal{"Log", [](const std::string& path) { RemoveEnding(path + "/db", ".log"); }},
        Removal{"Current",
                [](const std::string& path) { std::filesystem::remove(path + "/db/CURRENT"); }},
        Removal{"AcknowledgedMark",
                [](const std::string& path) { std::filesystem::remove(path + "/ACKNOWLEDGED"); }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(RocksStoreTest, ARemovedTableIsNoticedWithinAFewWrites) {
  { ASSERT_TRUE(Open(path_).ok()); }
  RocksStoreOptions options;
  options.cluster = "test";
  options.write_buffer_bytes = size_t{64} << 10;
  auto store = RocksStore::Open(path_, options);
  ASSERT_TRUE(store.ok()) << store.status();
  // A backup flushes the memory tables into files.
  Fill(**store, 5);
  ASSERT_TRUE((*store)->Backup(directory_.path() + "/copy").ok());
  RemoveEnding(path_ + "/db", ".sst");
  absl::Status status;
  for (int i = 0; i < kMarksPerSync && status.ok(); ++i) {
    status = (*store)->Commit(RandomBatch(static_cast<uint64_t>(i), 10)).status();
  }
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(".sst is missing"));
}

}  // namespace
}  // namespace nibble
