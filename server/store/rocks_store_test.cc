// What a store on disk promises beyond what every store does: its directory, its lock, copies.
#include "server/store/rocks_store.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/store.h"
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

  store_testing::TempDirectory directory_;
  const std::string path_ = directory_.path() + "/store";
};

TEST_F(RocksStoreTest, ASecondOpeningIsRefusedNamingTheProcessThatHasIt) {
  auto store = Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Status second = Open(path_).status();
  EXPECT_TRUE(absl::IsUnavailable(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr(absl::StrCat("in process ", getpid())));
  store->reset();
  EXPECT_TRUE(Open(path_).ok());
}

TEST_F(RocksStoreTest, ABackupIsTheStoreAtOneMomentAndOpensAsOne) {
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
  // Each goes its own way.
  EXPECT_EQ((*copied)->Commit({}).value(), 31u);
  EXPECT_EQ((*store)->Commit({}).value(), 36u);
  EXPECT_TRUE((*store)->Verify().ok()) << (*store)->Verify();
}

TEST_F(RocksStoreTest, ABackupOverSomethingIsRefusedAndLeavesItAlone) {
  auto store = Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  const std::string copy = directory_.path() + "/copy";
  std::ofstream(copy) << "mine";
  const absl::Status status = (*store)->Backup(copy);
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_EQ(std::filesystem::file_size(copy), 4u);
}

TEST_F(RocksStoreTest, AnUnfinishedBackupIsNoStore) {
  auto store = Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  const std::string copy = directory_.path() + "/copy";
  ASSERT_TRUE((*store)->Backup(copy).ok());
  std::filesystem::remove(copy + "/STORE");
  const absl::Status status = Open(copy).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("STORE is missing"));
}

TEST_F(RocksStoreTest, ADirectoryWithOtherThingsInItIsLeftAlone) {
  std::filesystem::create_directory(path_);
  std::ofstream(path_ + "/thesis.tex") << "x";
  const absl::Status status = Open(path_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("thesis.tex"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/STORE"));
}

TEST_F(RocksStoreTest, AStoreOfANewerVersionIsRefusedNamingBothAndLeftAsItIs) {
  { ASSERT_TRUE(Open(path_).ok()); }
  std::ofstream(path_ + "/STORE") << "nibble coordinator store\nversion 7\n";
  const absl::Status status = Open(path_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("version 7"), HasSubstr("up to 1")));
}

TEST_F(RocksStoreTest, TheDatabaseOfAnotherClusterUnderThisOnesMarkerIsRefused) {
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

TEST_F(RocksStoreTest, ALostMarkOrManifestPointerIsNotTakenForANewStore) {
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

TEST_F(RocksStoreTest, ATrimOfManyRecordsGoesThroughAndIsRememberedAfterARestart) {
  {
    auto store = Open(path_);
    ASSERT_TRUE(store.ok()) << store.status();
    for (int i = 0; i < 2999; ++i) {
      ASSERT_TRUE((*store)->Append({.topics = {absl::StrCat(i % 3)}}, [](absl::Status) {}).ok());
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

}  // namespace
}  // namespace nibble
