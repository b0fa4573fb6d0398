// Promises of a store on disk beyond those of every store: its directory, its lock, copies, and
// failures of the disk, where the failing write's batches and those behind them fail, the store
// stops, and the next opening finds a prefix with everything acknowledged.
#include "server/store/rocks_store.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"
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

using file_testing::TempDirectory;
using rocksdb::FileOptions;
using rocksdb::FSRandomRWFile;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// Decides the result of a write or sync of the file at `path`; called from several threads.
using Decide = std::function<IOStatus(const std::string& path, bool sync)>;

class FailingFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FailingFile(std::unique_ptr<FSWritableFile> file, std::string path, const Decide& decide)
      : FSWritableFileOwnerWrapper(std::move(file)), path_(std::move(path)), decide_(decide) {}
  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    IOStatus status = decide_(path_, false);
    return status.ok() ? FSWritableFileOwnerWrapper::Append(data, options, debug) : status;
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* debug) override {
    return Append(data, options, debug);
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return decide_(path_, true); }
  IOStatus Fsync(const IOOptions&, IODebugContext*) override { return decide_(path_, true); }

 private:
  const std::string path_;
  const Decide decide_;
};

class FailingRandomFile : public rocksdb::FSRandomRWFileOwnerWrapper {
 public:
  FailingRandomFile(std::unique_ptr<FSRandomRWFile> file, std::string path, const Decide& decide)
      : FSRandomRWFileOwnerWrapper(std::move(file)), path_(std::move(path)), decide_(decide) {}
  IOStatus Write(uint64_t offset, const Slice& data, const IOOptions& options,
                 IODebugContext* debug) override {
    IOStatus status = decide_(path_, false);
    return status.ok() ? FSRandomRWFileOwnerWrapper::Write(offset, data, options, debug) : status;
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return decide_(path_, true); }
  IOStatus Fsync(const IOOptions&, IODebugContext*) override { return decide_(path_, true); }

 private:
  const std::string path_;
  const Decide decide_;
};

class FailingFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit FailingFileSystem(Decide decide)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), decide_(std::move(decide)) {}
  const char* Name() const override { return "nibble.Failing"; }
  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSWritableFile>* result,
                           IODebugContext* debug) override {
    IOStatus status = FileSystemWrapper::NewWritableFile(path, options, result, debug);
    if (status.ok()) *result = std::make_unique<FailingFile>(std::move(*result), path, decide_);
    return status;
  }
  IOStatus NewRandomRWFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSRandomRWFile>* result,
                           IODebugContext* debug) override {
    IOStatus status = FileSystemWrapper::NewRandomRWFile(path, options, result, debug);
    if (status.ok()) {
      *result = std::make_unique<FailingRandomFile>(std::move(*result), path, decide_);
    }
    return status;
  }

 private:
  const Decide decide_;
};

class StoreFaultsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<RocksStore>> Open() {
    RocksStoreOptions options;
    options.cluster = "faults";
    options.write_buffer_bytes = size_t{64} << 10;
    options.file_system = std::make_shared<FailingFileSystem>(
        [this](const std::string& path, bool sync) { return Decide(path, sync); });
    return RocksStore::Open(directory_.path() + "/store", options);
  }

  IOStatus Decide(const std::string& path, bool sync) {
    MutexLock lock(&mutex_);
    return fault_ ? fault_(path, sync) : IOStatus::OK();
  }
  void SetFault(std::function<IOStatus(const std::string&, bool)> fault) {
    MutexLock lock(&mutex_);
    fault_ = std::move(fault);
  }

  // Opens without faults and checks that the content is a prefix of the submitted batches, with at
  // least `acknowledged` of them.
  void RecoversPrefix(uint64_t acknowledged) {
    SetFault(nullptr);
    auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    const uint64_t last = (*store)->Info().last_sequence;
    ASSERT_GE(last, acknowledged);
    ASSERT_LE(last, submitted_.size());
    Content expected;
    for (uint64_t i = 1; i <= last; ++i) expected.Apply(i, submitted_[i - 1]);
    EXPECT_EQ(*ReadAll(**store), expected);
    EXPECT_TRUE((*store)->Commit({}).ok());
  }

  absl::StatusOr<uint64_t> Commit(Store& store) {
    submitted_.push_back(RandomBatch(submitted_.size(), 500));
    return store.Commit(submitted_.back());
  }

  TempDirectory directory_;
  Mutex mutex_;
  std::function<IOStatus(const std::string&, bool)> fault_ ABSL_GUARDED_BY(mutex_);
  std::vector<StoreBatch> submitted_;
};

TEST_F(StoreFaultsTest, AFullDiskStopsTheStoreAndReadsKeepTheirContent) {
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Commit(**store).ok());
  const Content before = *ReadAll(**store);
  SetFault([](const std::string&, bool sync) {
    return sync ? IOStatus::OK() : IOStatus::NoSpace("No space left on device");
  });
  const absl::Status failed = Commit(**store).status();
  EXPECT_TRUE(absl::IsResourceExhausted(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("No space left"));
  // Free space alone does not restart it: the outcome of the failed write is unknown.
  SetFault(nullptr);
  EXPECT_EQ((*store)->Commit({}).status(), failed);
  EXPECT_EQ((*store)->TrimJournal(1), failed);
  EXPECT_EQ((*store)->Health(), failed);
  EXPECT_EQ(*ReadAll(**store), before);
  EXPECT_EQ((*store)->Info().last_sequence, 10u);
  EXPECT_EQ((*store)->Metrics().failed, 1u);
  store->reset();
  RecoversPrefix(10);
}

TEST_F(StoreFaultsTest, AFailedSyncIsNotRetriedAndTheNextOpeningDecidesItsBatch) {
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Commit(**store).ok());
  const Content before = *ReadAll(**store);
  int syncs = 0;
  SetFault([&syncs](const std::string& path, bool sync) {
    if (!sync || !absl::EndsWith(path, ".log")) return IOStatus::OK();
    return ++syncs == 1 ? IOStatus::IOError("Input/output error") : IOStatus::OK();
  });
  const absl::Status failed = Commit(**store).status();
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_EQ((*store)->Commit({}).status(), failed);
  EXPECT_EQ(*ReadAll(**store), before);
  store->reset();
  EXPECT_EQ(syncs, 1);
  RecoversPrefix(5);
}

TEST_F(StoreFaultsTest, BatchesBehindAFailedWriteFailWithItInOrder) {
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  // The first sync waits until all batches are appended, then fails.
  std::atomic<bool> appended{false};
  SetFault([&appended](const std::string& path, bool sync) {
    if (!sync || !absl::EndsWith(path, ".log")) return IOStatus::OK();
    appended.wait(false);
    return IOStatus::IOError("Input/output error");
  });
  std::vector<int> called;
  for (int i = 0; i < 20; ++i) {
    submitted_.push_back(RandomBatch(submitted_.size(), 100));
    const auto sequence =
        (*store)->Append(submitted_.back(), [&called, i](const absl::Status& status) {
          EXPECT_TRUE(absl::IsInternal(status)) << status;
          called.push_back(i);
        });
    ASSERT_TRUE(sequence.ok()) << sequence.status();
  }
  appended = true;
  appended.notify_all();
  store->reset();
  ASSERT_EQ(called.size(), 20u);
  EXPECT_TRUE(std::is_sorted(called.begin(), called.end()));
  RecoversPrefix(0);
}

TEST_F(StoreFaultsTest, AFailureAnywhereInALongHistoryLosesNothingAcknowledged) {
  // Fails the k-th write or sync, counted over all files, and all later ones.
  for (const int k : {1, 2, 3, 5, 8, 20, 50, 90, 150, 250, 400, 700}) {
    for (const bool full : {false, true}) {
      SCOPED_TRACE(absl::StrCat("from write ", k, " on, ", full ? "full" : "broken"));
      std::filesystem::remove_all(directory_.path() + "/store");
      submitted_.clear();
      uint64_t acknowledged = 0;
      {
        int count = 0;  // outlives the store, whose threads count too
        auto store = Open();
        ASSERT_TRUE(store.ok()) << store.status();
        SetFault([&count, k, full](const std::string&, bool) {
          if (++count < k) return IOStatus::OK();
          return full ? IOStatus::NoSpace("No space left on device")
                      : IOStatus::IOError("Input/output error");
        });
        for (int i = 0; i < 300; ++i) {
          const absl::StatusOr<uint64_t> sequence = Commit(**store);
          if (!sequence.ok()) {
            EXPECT_EQ(absl::IsResourceExhausted(sequence.status()), full) << sequence.status();
            EXPECT_FALSE((*store)->Health().ok());
            break;
          }
          acknowledged = *sequence;
        }
      }
      RecoversPrefix(acknowledged);
    }
  }
}

TEST_F(StoreFaultsTest, AMarkThatCannotBeWrittenStopsTheStore) {
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE(Commit(**store).ok());
  SetFault([](const std::string& path, bool) {
    return absl::EndsWith(path, "ACKNOWLEDGED") ? IOStatus::IOError("Input/output error")
                                                : IOStatus::OK();
  });
  const absl::Status failed = Commit(**store).status();
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("ACKNOWLEDGED"));
  EXPECT_FALSE((*store)->Health().ok());
  store->reset();
  RecoversPrefix(1);
}

TEST_F(StoreFaultsTest, AnOpeningOnAFullDiskIsResourceExhaustedAndCanBeRepeated) {
  { ASSERT_TRUE(Open().ok()); }
  SetFault([](const std::string&, bool) { return IOStatus::NoSpace("No space left on device"); });
  const absl::Status failed = Open().status();
  EXPECT_TRUE(absl::IsResourceExhausted(failed)) << failed;
  RecoversPrefix(0);
}

}  // namespace
}  // namespace nibble
