#include "worker/trainer/data/prefetcher.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/batch_builder.h"
#include "worker/trainer/data/data_testing.h"

namespace nibble {
namespace {

// A batch whose token is its number.
Batch Numbered(int64_t number) {
  Batch batch{.sequences = 1, .length = 1};
  batch.tokens = {static_cast<int32_t>(number)};
  return batch;
}

// A counter that threads can wait on.
class Counter {
 public:
  void Add() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  void WaitFor(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

TEST(Prefetcher, BatchesAreReturnedInOrderAtAnyDepth) {
  for (const int depth : {-1, 0, 1, 2, 7}) {
    Prefetcher prefetcher([](int64_t n) { return Numbered(n); }, 40, depth);
    for (int64_t n = 40; n < 140; ++n) ASSERT_EQ(*prefetcher.Next(), Numbered(n)) << depth;
  }
}

TEST(Prefetcher, BatchesEqualThoseBuiltDirectly) {
  const auto builder = BatchBuilder::Create({{MakeShard(RandomDocuments(1, 100, 50, 1000))}},
                                            {.seed = 3, .global_sequences = 8, .length = 16});
  ASSERT_TRUE(builder.ok());
  constexpr int64_t kMicros = 2;
  const auto make = [&](int64_t n) {
    return builder->Build({n / kMicros, 1, 2, n % kMicros, kMicros});
  };
  Prefetcher prefetcher(make, 10, 3);
  for (int64_t n = 10; n < 60; ++n) ASSERT_EQ(*prefetcher.Next(), *make(n));
}

TEST(Prefetcher, NoMoreThanItsDepthIsMadeAhead) {
  std::atomic<int64_t> taken{0}, most_ahead{0};
  Counter made;
  {
    Prefetcher prefetcher(
        [&](int64_t n) {
          // This batch and earlier ones that were not taken.
          most_ahead = std::max(most_ahead.load(), n + 1 - taken.load());
          made.Add();
          return Numbered(n);
        },
        0, 3);
    made.WaitFor(3);  // without a single Next()
    for (int i = 0; i < 50; ++i) {
      ++taken;  // before Next(), which lets the thread continue
      ASSERT_TRUE(prefetcher.Next().ok());
    }
  }
  EXPECT_LE(most_ahead, 3);
}

TEST(Prefetcher, AnErrorIsReturnedInOrderAndStaysAndNoBatchIsMadeAfterIt) {
  std::atomic<int> calls{0};
  Prefetcher prefetcher(
      [&](int64_t n) -> absl::StatusOr<Batch> {
        ++calls;
        if (n == 3) return absl::DataLossError("chunk 7");
        return Numbered(n);
      },
      0, 10);
  for (int64_t n = 0; n < 3; ++n) EXPECT_EQ(*prefetcher.Next(), Numbered(n));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(prefetcher.Next().status(), absl::DataLossError("chunk 7"));
  EXPECT_EQ(calls, 4);
}

TEST(Prefetcher, DestructionWaitsForTheBatchBeingMadeAndDropsTheRest) {
  std::atomic<int> running{0};
  for (int i = 0; i < 100; ++i) {
    Counter started;
    {
      Prefetcher prefetcher(
          [&](int64_t n) {
            ++running;
            started.Add();
            const Batch batch = Numbered(n);
            --running;
            return batch;
          },
          0, 1 + i % 4);
      if (i % 2 == 0) started.WaitFor(1);
      if (i % 3 == 0) {
        ASSERT_TRUE(prefetcher.Next().ok());
      }
    }
    ASSERT_EQ(running, 0);
  }
}

TEST(Prefetcher, SeveralTakersGetEveryBatchOnce) {
  Prefetcher prefetcher([](int64_t n) { return Numbered(n); }, 0, 2);
  std::vector<std::vector<int32_t>> got(3);
  std::vector<std::thread> threads;
  for (auto& mine : got) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) mine.push_back(prefetcher.Next()->tokens[0]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<int32_t> all;
  for (const auto& mine : got) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  for (int32_t n = 0; n < 300; ++n) ASSERT_EQ(all[n], n);
}

}  // namespace
}  // namespace nibble
