#include "common/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

// Runs a loop and checks what every loop promises; returns the threads that took part.
int64_t RunAndCheck(ThreadPool& pool, int64_t tasks) {
  std::vector<std::atomic<int>> runs(tasks);
  std::vector<std::atomic<int>> inside(pool.threads());
  std::vector<int64_t> by_thread(pool.threads(), 0);  // unguarded: one thread number, one thread
  std::atomic<int> out_of_range = 0;
  std::atomic<int> overlaps = 0;
  pool.ParallelFor(tasks, [&](int64_t index, int thread) {
    if (thread < 0 || thread >= pool.threads() || index < 0 || index >= tasks) {
      ++out_of_range;
      return;
    }
    if (inside[thread].fetch_add(1) != 0) ++overlaps;
    ++runs[index];
    ++by_thread[thread];
    inside[thread].fetch_sub(1);
  });
  EXPECT_EQ(out_of_range, 0);
  EXPECT_EQ(overlaps, 0);
  int64_t sum = 0;
  int64_t took_part = 0;
  for (const int64_t count : by_thread) {
    sum += count;
    took_part += count > 0;
  }
  EXPECT_EQ(sum, tasks);
  for (int64_t i = 0; i < tasks; ++i) EXPECT_EQ(runs[i], 1) << "task " << i << " of " << tasks;
  return took_part;
}

TEST(ThreadPool, CountsTheCallerAmongItsThreads) {
  for (const int threads : {1, 2, 3, 8}) EXPECT_EQ(ThreadPool(threads).threads(), threads);
}

TEST(ThreadPool, ZeroThreadsMeansEveryProcessorThisProcessMayUse) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  EXPECT_EQ(ThreadPool(0).threads(), CPU_COUNT(&set));
}

TEST(ThreadPool, RunsEveryIndexOnceAndThreadNumbersDoNotOverlap) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (const int64_t tasks : {0, 1, 2, 3, 6, 7, 8, 100, 10000}) {
      EXPECT_LE(RunAndCheck(pool, tasks), threads);
    }
  }
}

TEST(ThreadPool, IsReusedManyTimes) {
  ThreadPool pool(4);
  std::atomic<int64_t> sum = 0;
  for (int round = 0; round < 5000; ++round) {
    pool.ParallelFor(round % 9, [&](int64_t index, int) { sum += index + 1; });
  }
  int64_t expected = 0;
  for (int round = 0; round < 5000; ++round) expected += (round % 9) * (round % 9 + 1) / 2;
  EXPECT_EQ(sum, expected);
}

TEST(ThreadPool, WhatTasksWroteIsSeenWhenTheLoopReturns) {
  ThreadPool pool(3);
  std::vector<int64_t> plain(1000, 0);
  for (int round = 1; round <= 200; ++round) {
    pool.ParallelFor(1000, [&](int64_t index, int) { plain[index] += index; });
    for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(plain[i], i * round);
  }
}

// Each task waits until all have begun, so this ends only if as many threads as tasks take part.
TEST(ThreadPool, TasksRunAtTheSameTimeOnAllThreads) {
  constexpr int kThreads = 5;
  ThreadPool pool(kThreads);
  for (int round = 0; round < 20; ++round) {
    Mutex mutex;
    CondVar all_begun;
    int begun = 0;
    std::vector<int> seen(kThreads, 0);
    pool.ParallelFor(kThreads, [&](int64_t, int thread) {
      MutexLock lock(&mutex);
      ++seen[thread];
      if (++begun == kThreads) all_begun.SignalAll();
      while (begun < kThreads) all_begun.Wait(&mutex);
    });
    EXPECT_EQ(seen, std::vector<int>(kThreads, 1));
  }
}

TEST(ThreadPool, OneTaskRunsOnTheCallersThread) {
  ThreadPool pool(4);
  const std::thread::id caller = std::this_thread::get_id();
  std::thread::id ran;
  pool.ParallelFor(1, [&](int64_t, int thread) {
    EXPECT_EQ(thread, 0);
    ran = std::this_thread::get_id();
  });
  EXPECT_EQ(ran, caller);
}

TEST(ThreadPool, PoolsThatNeverWorkedAreDestroyedCleanly) {
  for (int i = 0; i < 50; ++i) {
    const auto pool = std::make_unique<ThreadPool>(1 + i % 8);
    if (i % 2 == 0) RunAndCheck(*pool, i);
  }
}

}  // namespace
}  // namespace nibble
