// Plays a power failure at every moment of a history. Afterwards the store has every acknowledged
// batch, its content is a prefix of the submitted batches, and it accepts further ones.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "common/files/power_testing.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "rocksdb/file_system.h"
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
using store_testing::From;
using store_testing::RandomBatch;
using store_testing::ReadAll;
using store_testing::Recording;

constexpr int kThreads = 4;
constexpr int kBatchesEach = 45;
constexpr int kRounds = 2;  // the store is closed and opened again between them
constexpr uint64_t kTrimAt = 130, kTrimThrough = 80;

RocksStoreOptions CrashOptions(std::shared_ptr<rocksdb::FileSystem> fs) {
  RocksStoreOptions options;
  options.cluster = "crash";
  options.write_buffer_bytes = size_t{64} << 10;
  options.file_system = std::move(fs);
  return options;
}

// The recorded history, and the content after each prefix of it.
class StoreCrashTest : public ::testing::Test {
 protected:
  void SetUp() override {
    recording_ = std::make_shared<Recording>(directory_.path());
    for (int round = 0; round < kRounds; ++round) {
      auto store = RocksStore::Open(directory_.path() + "/store",
                                    CrashOptions(recording_->FileSystem(recording_)));
      ASSERT_TRUE(store.ok()) << store.status();
      std::vector<std::thread> threads;
      for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] { Submit(**store, round, t); });
      }
      for (std::thread& thread : threads) thread.join();
    }
    // The history has everything to interrupt: tables written, merged and removed, and new logs.
    EXPECT_GE(Count(FileEvent::Kind::kCreateFile, ".sst"), 16);
    EXPECT_GE(Count(FileEvent::Kind::kDelete, ".sst"), 4);
    EXPECT_GE(Count(FileEvent::Kind::kCreateFile, ".log"), 4);
    after_.emplace_back();
    for (const auto& [sequence, batch] : batches_) {
      ASSERT_EQ(sequence, after_.size());
      after_.push_back(after_.back());
      after_.back().Apply(sequence, batch);
    }
    ASSERT_EQ(after_.size(), size_t{1} + kRounds * kThreads * kBatchesEach);
  }

  int64_t Count(FileEvent::Kind kind, const std::string& ending) {
    const auto& events = recording_->events();
    return std::count_if(events.begin(), events.end(), [&](const FileEvent& event) {
      return event.kind == kind && absl::EndsWith(event.path, ending);
    });
  }

  // Every other batch is appended without waiting, so that groups have several batches.
  void Submit(Store& store, int round, int thread) {
    for (int i = 0; i < kBatchesEach; ++i) {
      const StoreBatch batch =
          RandomBatch(static_cast<uint64_t>((round * kThreads + thread) * 1000 + i), 1500);
      if (i % 2 == 0) {
        MutexLock lock(&mutex_);
        const auto number = std::make_shared<uint64_t>(0);
        const auto sequence = store.Append(batch, [this, number](absl::Status status) {
          EXPECT_TRUE(status.ok()) << status;
          MutexLock lock(&mutex_);
          recording_->Note(*number);
        });
        ASSERT_TRUE(sequence.ok()) << sequence.status();
        *number = *sequence;
        batches_[*sequence] = batch;
        continue;
      }
      const absl::StatusOr<uint64_t> sequence = store.Commit(batch);
      ASSERT_TRUE(sequence.ok()) << sequence.status();
      recording_->Note(*sequence);
      MutexLock lock(&mutex_);
      batches_[*sequence] = batch;
      if (*sequence >= kTrimAt && !trimmed_) {
        trimmed_ = true;
        const absl::Status trim = store.TrimJournal(kTrimThrough);
        EXPECT_TRUE(trim.ok()) << trim;
      }
    }
  }

  // Opens the disk after a power failure and compares it with the history.
  void Recovers(const DiskImage::Files& files, uint64_t acknowledged) {
    MakeDisk(disk_.path(), files);
    const std::string path = disk_.path() + "/store";
    auto store = RocksStore::Open(path, CrashOptions(store_testing::QuickFileSystem()));
    ASSERT_TRUE(store.ok()) << store.status();
    const StoreInfo info = (*store)->Info();
    last_recovered_ = info.last_sequence;
    ASSERT_GE(info.last_sequence, acknowledged);
    ASSERT_LT(info.last_sequence, after_.size());
    ASSERT_TRUE(info.first_sequence == 1 || info.first_sequence == kTrimThrough + 1)
        << info.first_sequence;
    const absl::StatusOr<Content> content = ReadAll(**store);
    ASSERT_TRUE(content.ok()) << content.status();
    ASSERT_TRUE(*content == From(after_[info.last_sequence], info.first_sequence))
        << "not what " << info.last_sequence << " batches make";
    ++recovered_;
    if (recovered_ % 16 != 0) return;

    // It accepts further batches and keeps them.
    const StoreBatch next = RandomBatch(recovered_, 100);
    Content expected = *content;
    ASSERT_EQ((*store)->Commit(next).value_or(0), info.last_sequence + 1);
    expected.Apply(info.last_sequence + 1, next);
    const absl::Status verified = (*store)->Verify();
    ASSERT_TRUE(verified.ok()) << verified;
    store->reset();
    store = RocksStore::Open(path, CrashOptions(store_testing::QuickFileSystem()));
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ(*ReadAll(**store), expected);
  }

  // After a power failure before event `moment` of the history, the power fails again at every
  // moment of the next opening and first commit.
  void FailWhileRecovering(size_t moment, std::mt19937_64& random) {
    DiskImage image;
    uint64_t acknowledged = 0;
    for (size_t i = 0; i < moment; ++i) {
      const FileEvent& event = recording_->events()[i];
      if (event.kind == FileEvent::Kind::kNote) acknowledged = std::max(acknowledged, event.number);
      image.Apply(event);
    }
    const DiskImage::Files left = image.Torn(random);
    MakeDisk(disk_.path(), left);
    const auto recording = std::make_shared<Recording>(disk_.path());
    DiskImage again = recording->Begin(left);
    {
      auto store =
          RocksStore::Open(disk_.path() + "/store", CrashOptions(recording->FileSystem(recording)));
      ASSERT_TRUE(store.ok()) << store.status();
      // The batch that had this number in the history, if any.
      const uint64_t next = (*store)->Info().last_sequence + 1;
      if (next < after_.size()) {
        ASSERT_EQ((*store)->Commit(batches_[next]).value_or(0), next);
        recording->Note(next);
      }
    }
    for (size_t i = 0; i <= recording->events().size(); ++i) {
      SCOPED_TRACE(absl::StrCat("before event ", i, " of the opening"));
      Recovers(i % 2 == 0 ? again.Synced() : again.Torn(random), acknowledged);
      if (HasFatalFailure() || i == recording->events().size()) return;
      const FileEvent& event = recording->events()[i];
      if (event.kind == FileEvent::Kind::kNote) acknowledged = std::max(acknowledged, event.number);
      again.Apply(event);
    }
  }

  // Calls Recovers with the disk that `failure` leaves before every event. A disk that equals the
  // previous one recovers to the same batch, which must have been acknowledged last or later.
  void FailEverywhere(const std::function<DiskImage::Files(const DiskImage&)>& failure) {
    DiskImage image;
    std::optional<DiskImage::Files> last;
    uint64_t acknowledged = 0;
    int64_t disks = 0;
    bool is_recovered = false;  // `last`
    const std::vector<FileEvent>& events = recording_->events();
    for (size_t i = 0; i <= events.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("before event ", i, " of ", events.size()));
      DiskImage::Files files = failure(image);
      if (files != last) {
        is_recovered = disks++ % kOneIn == 0;
        if (is_recovered) Recovers(files, acknowledged);
        if (HasFatalFailure()) return;
        last = std::move(files);
      } else if (is_recovered) {
        ASSERT_GE(last_recovered_, acknowledged);
      }
      if (i == events.size()) break;
      if (events[i].kind == FileEvent::Kind::kNote) {
        acknowledged = std::max(acknowledged, events[i].number);
      }
      image.Apply(events[i]);
    }
    EXPECT_GT(recovered_, 100u / kOneIn);
  }

  TempDirectory directory_;
  TempDirectory disk_{TempDirectory::Place::kMemory};
  std::shared_ptr<Recording> recording_;
  Mutex mutex_;
  std::map<uint64_t, StoreBatch> batches_;  // by sequence number
  bool trimmed_ = false;
  std::vector<Content> after_;  // [batches]
  uint64_t recovered_ = 0;
  uint64_t last_recovered_ = 0;  // batch
};

TEST_F(StoreCrashTest, NothingAcknowledgedIsLostWhereNothingUnsyncedSurvives) {
  FailEverywhere([](const DiskImage& image) { return image.Synced(); });
}

TEST_F(StoreCrashTest, NothingAcknowledgedIsLostWhereNamesSurviveAndUnsyncedBytesDoNot) {
  FailEverywhere([](const DiskImage& image) { return image.SyncedBytes(); });
}

TEST_F(StoreCrashTest, NothingAcknowledgedIsLostWhereUnsyncedWritesAreTorn) {
  std::mt19937_64 random(20260101);
  FailEverywhere([&random](const DiskImage& image) { return image.Torn(random); });
}

TEST_F(StoreCrashTest, NothingAcknowledgedIsLostWhereOnlyTheProcessDies) {
  FailEverywhere([](const DiskImage& image) { return image.Current(); });
}

TEST_F(StoreCrashTest, NothingAcknowledgedIsLostWhereThePowerFailsAgainDuringRecovery) {
  std::mt19937_64 random(7);
  const size_t events = recording_->events().size();
  for (size_t part = 1; part <= 12; part += kOneIn) {
    const size_t moment = events * part / 12;
    SCOPED_TRACE(absl::StrCat("first failure before event ", moment, " of ", events));
    FailWhileRecovering(moment, random);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace nibble
