// Failures of the disk: the batches of the failing write and those behind them fail, the store
// stops, and the next opening finds a prefix with everything acknowledged.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
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
#include "server/store/rocks_store.h"
#include "server/store/store.h"
#include "server/store/store_testing.h"

namespace nibble {
namespace {

using file_testing::TempDirectory;
using rocksdb::FileOptions;
using rocksdb::FSRandomRWFile;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;
using store_testing::Content;
using store_testing::RandomBatch;
using store_testing::ReadAll;
using ::testing::HasSubstr;

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

TEST_F(StoreFaultsTest, FilesOfFailedOpeningsAreRemovedByTheNext) {
  {
    auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(Commit(**store).ok());
  }
  // The tables are written, the manifest that would name them is not.
  SetFault([](const std::string& path, bool sync) {
    return !sync && absl::StrContains(path, "/MANIFEST-")
               ? IOStatus::NoSpace("No space left on device")
               : IOStatus::OK();
  });
  const auto count_files = [this] {
    const std::filesystem::directory_iterator files(directory_.path() + "/store/db");
    return std::distance(begin(files), end(files));
  };
  EXPECT_TRUE(absl::IsResourceExhausted(Open().status()));
  const auto files = count_files();
  for (int start = 0; start < 3; ++start) {
    const absl::Status failed = Open().status();
    EXPECT_TRUE(absl::IsResourceExhausted(failed)) << failed;
    EXPECT_THAT(std::string(failed.message()), HasSubstr("bytes of its disk, and "));
    EXPECT_EQ(count_files(), files);
  }
  RecoversPrefix(20);
}

}  // namespace
}  // namespace nibble
