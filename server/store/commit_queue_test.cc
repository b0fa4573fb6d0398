// Group commit, and the faults that FaultyStore plays with a queue of its own.
#include "server/store/commit_queue.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/store.h"
#include "server/store/store_testing.h"

namespace nibble {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A writer that blocks at each group until released, and records the sizes of groups.
class Writer {
 public:
  absl::Status operator()(absl::Span<const CommitQueue::Entry> group) {
    entered_ = entered_ + 1;
    entered_.notify_all();
    if (hold_) open_.wait(false);
    MutexLock lock(&mutex_);
    sizes_.push_back(group.size());
    if (!failure_.ok()) return failure_;
    return absl::OkStatus();
  }
  void Hold() { hold_ = true; }
  void Open() {
    open_ = true;
    open_.notify_all();
  }
  void WaitForGroup() { entered_.wait(0); }
  void Fail(absl::Status status) {
    MutexLock lock(&mutex_);
    failure_ = std::move(status);
  }
  std::vector<size_t> sizes() {
    MutexLock lock(&mutex_);
    return sizes_;
  }

 private:
  std::atomic<bool> hold_{false}, open_{false};
  std::atomic<int> entered_{0};
  Mutex mutex_;
  std::vector<size_t> sizes_;
  absl::Status failure_;
};

class CommitQueueTest : public ::testing::Test {
 protected:
  std::unique_ptr<CommitQueue> Make(uint64_t last = 0) {
    return std::make_unique<CommitQueue>(
        options_, last,
        [this](absl::Span<const CommitQueue::Entry> group) { return writer_(group); });
  }
  absl::StatusOr<uint64_t> Append(CommitQueue& queue, size_t bytes = 1) {
    return queue.Append({.record = std::string(bytes, 'r')}, [this](absl::Status status) {
      MutexLock lock(&mutex_);
      results_.push_back(std::move(status));
    });
  }

  StoreOptions options_;
  Writer writer_;
  Mutex mutex_;
  std::vector<absl::Status> results_;  // guarded by mutex_
};

TEST_F(CommitQueueTest, BatchesThatArriveDuringAWriteShareTheNextOne) {
  writer_.Hold();
  const auto queue = Make();
  ASSERT_TRUE(Append(*queue).ok());
  writer_.WaitForGroup();
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(Append(*queue).ok());
  EXPECT_EQ(queue->Metrics().waiting, 10u);
  writer_.Open();
  queue->Close();
  EXPECT_THAT(writer_.sizes(), ElementsAre(1u, 9u));
  EXPECT_EQ(results_.size(), 10u);
  EXPECT_THAT(results_, Each(absl::OkStatus()));
  EXPECT_EQ(queue->Metrics().batches_per_write.sum, 10);
  EXPECT_EQ(queue->Metrics().batches_per_write.count, 2u);
}

TEST_F(CommitQueueTest, AGroupHasAtMostTheAllowedNumberOfBatches) {
  options_.max_batches_per_write = 4;
  writer_.Hold();
  const auto queue = Make();
  ASSERT_TRUE(Append(*queue).ok());
  writer_.WaitForGroup();
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(Append(*queue).ok());
  writer_.Open();
  queue->Close();
  EXPECT_THAT(writer_.sizes(), ElementsAre(1u, 4u, 4u, 1u));
}

TEST_F(CommitQueueTest, ABatchBeyondTheBoundOfWaitingBytesIsRefusedAndLaterOnesAreAccepted) {
  options_.max_waiting_bytes = 100;
  writer_.Hold();
  const auto queue = Make();
  ASSERT_TRUE(Append(*queue, 1000).ok());  // a lone batch is always accepted
  writer_.WaitForGroup();
  ASSERT_TRUE(Append(*queue, 100).ok());
  const absl::Status refused = Append(*queue, 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("allowed are 100"));
  EXPECT_TRUE(queue->Health().ok());
  writer_.Open();
  queue->Close();
  EXPECT_EQ(results_.size(), 2u);
  EXPECT_EQ(queue->Metrics().refused, 1u);
}

TEST_F(CommitQueueTest, WaitingBatchesMayFillTheBoundExactly) {
  options_.max_waiting_bytes = 100;
  writer_.Hold();
  const auto queue = Make();
  ASSERT_TRUE(Append(*queue, 60).ok());
  writer_.WaitForGroup();
  ASSERT_TRUE(Append(*queue, 20).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Append(*queue, 21).status()));
  EXPECT_TRUE(Append(*queue, 20).ok());
  writer_.Open();
  queue->Close();
  EXPECT_EQ(results_.size(), 3u);
  EXPECT_EQ(queue->Metrics().waiting_bytes, 0u);
}

TEST_F(CommitQueueTest, AFailedWriteFailsItsGroupAndAllLaterBatchesWithoutWritingThem) {
  writer_.Hold();
  const auto queue = Make(41);
  ASSERT_EQ(Append(*queue).value(), 42u);
  writer_.WaitForGroup();
  ASSERT_EQ(Append(*queue).value(), 43u);
  writer_.Fail(absl::InternalError("no disk"));
  writer_.Open();
  queue->Close();
  EXPECT_THAT(results_,
              ElementsAre(absl::InternalError("no disk"), absl::InternalError("no disk")));
  EXPECT_EQ(writer_.sizes().size(), 1u);
  EXPECT_EQ(queue->Health(), absl::InternalError("no disk"));
  EXPECT_EQ(Append(*queue).status(), absl::InternalError("no disk"));
  EXPECT_EQ(queue->last_sequence(), 41u);
  EXPECT_EQ(queue->Metrics().failed, 2u);
}

TEST_F(CommitQueueTest, AClosedQueueRefusesBatches) {
  const auto queue = Make();
  queue->Close();
  EXPECT_TRUE(absl::IsCancelled(Append(*queue).status()));
}

TEST_F(CommitQueueTest, TheDurationOfAWriteIsMeasuredByTheInjectedClock) {
  int64_t seconds = 0;
  options_.clock = [&seconds] { return absl::Seconds(seconds += 2); };
  const auto queue = Make();
  ASSERT_TRUE(Append(*queue).ok());
  queue->Close();
  EXPECT_EQ(queue->Metrics().write_seconds.sum, 2);
}

using Fault = FaultyStore::Fault;

class FaultyStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<FaultyStore> Open() {
    StoreOptions options;
    options.cluster = "test";
    auto behind = MemoryStore::Open(disk_, options);
    EXPECT_TRUE(behind.ok()) << behind.status();
    return std::make_unique<FaultyStore>(*std::move(behind));
  }

  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
};

TEST_F(FaultyStoreTest, ALostBatchIsAbsentAfterARestart) {
  auto store = Open();
  store->FailAppend(3, Fault::kLost);
  EXPECT_EQ(store->Commit({}).value(), 1u);
  EXPECT_EQ(store->Commit({}).value(), 2u);
  const absl::Status failed = store->Commit({}).status();
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_EQ(store->Commit({}).status(), failed);
  EXPECT_EQ(store->TrimJournal(1), failed);
  EXPECT_EQ(store->Health(), failed);
  store.reset();
  EXPECT_EQ(Open()->Info().last_sequence, 2u);
}

TEST_F(FaultyStoreTest, AWrittenBatchIsReportedAsFailedAndPresentAfterARestart) {
  auto store = Open();
  store->FailAppend(1, Fault::kWritten);
  EXPECT_TRUE(absl::IsInternal(store->Commit({.record = "r"}).status()));
  EXPECT_TRUE(absl::IsInternal(store->Commit({}).status()));
  store.reset();
  store = Open();
  EXPECT_EQ(store->Info().last_sequence, 1u);
  EXPECT_EQ(store->Commit({}).value(), 2u);
}

TEST_F(FaultyStoreTest, AFullDiskIsResourceExhausted) {
  auto store = Open();
  store->FailAppend(1, Fault::kDiskFull);
  EXPECT_TRUE(absl::IsResourceExhausted(store->Commit({}).status()));
  store.reset();
  EXPECT_EQ(Open()->Info().last_sequence, 0u);
}

TEST_F(FaultyStoreTest, HeldBatchesWaitInOrderUntilTheyAreReleased) {
  auto store = Open();
  store->Hold();
  std::vector<int> called;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(store
                  ->Append({},
                           [&called, i](const absl::Status& status) {
                             EXPECT_TRUE(status.ok()) << status;
                             called.push_back(i);
                           })
                  .value(),
              static_cast<uint64_t>(i) + 1);
  }
  EXPECT_EQ(store->Metrics().waiting, 3u);
  EXPECT_EQ(store->Info().last_sequence, 0u);
  store->Release();
  EXPECT_EQ(store->Commit({}).value(), 4u);
  EXPECT_THAT(called, ElementsAre(0, 1, 2));
}

TEST_F(FaultyStoreTest, HeldBatchesAreWrittenWhenTheStoreIsDestroyed) {
  auto store = Open();
  store->Hold();
  bool called = false;
  ASSERT_TRUE(
      store->Append({}, [&called](const absl::Status& status) { called = status.ok(); }).ok());
  store.reset();
  EXPECT_TRUE(called);
  EXPECT_EQ(Open()->Info().last_sequence, 1u);
}

}  // namespace
}  // namespace nibble
