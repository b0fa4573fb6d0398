#include "common/mutex.h"

#include <chrono>
#include <deque>
#include <thread>

#include "gtest/gtest.h"

namespace nibble {
namespace {

// Blocks takers until something was put.
class Queue {
 public:
  void Put(int value) {
    MutexLock lock(&mutex_);
    values_.push_back(value);
    changed_.Signal();
  }
  int Take() {
    MutexLock lock(&mutex_);
    while (values_.empty()) changed_.Wait(&mutex_);
    const int value = values_.front();
    values_.pop_front();
    return value;
  }
  // Whether the wait timed out.
  bool Wait(std::chrono::milliseconds timeout) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, timeout);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<int> values_ ABSL_GUARDED_BY(mutex_);
};

TEST(MutexTest, AWaiterSeesWhatWasPutUnderTheLock) {
  Queue queue;
  std::thread other([&queue] {
    for (int i = 0; i < 1000; ++i) queue.Put(i);
  });
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(queue.Take(), i);
  other.join();
}

TEST(MutexTest, AWaitWithoutASignalTimesOut) {
  Queue queue;
  EXPECT_TRUE(queue.Wait(std::chrono::milliseconds(1)));
  EXPECT_TRUE(queue.Wait(std::chrono::milliseconds(-1000))) << "a deadline in the past";
}

TEST(MutexTest, ATakenLockIsNotTakenAgain) {
  Mutex mutex;
  bool taken = false;
  const auto take = [&] {
    if (mutex.TryLock()) {
      taken = true;
      mutex.Unlock();
    }
  };
  mutex.Lock();
  std::thread(take).join();
  EXPECT_FALSE(taken);
  mutex.Unlock();
  std::thread(take).join();
  EXPECT_TRUE(taken);
}

}  // namespace
}  // namespace nibble
