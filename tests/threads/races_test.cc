// The thread sanitizer, with thread_sanitizer.cc, reports a race, and none where a lock orders the
// accesses.
#include <cstdlib>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "common/mutex.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr int kReported = 66;  // the sanitizer's exit code

template <class Increment>
void InTwoThreads(Increment increment) {
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) increment();
  });
  for (int i = 0; i < 1000; ++i) increment();
  other.join();
}

TEST(ThreadSanitizerDeathTest, ReportsAccessesThatNothingOrders) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        int count = 0;
        InTwoThreads([&] { ++count; });
        std::exit(0);
      },
      testing::ExitedWithCode(kReported), "data race");
}

TEST(ThreadSanitizer, SeesOurLocksAndAbseils) {
  Mutex ours;
  absl::Mutex abseils;
  int a = 0, b = 0;
  InTwoThreads([&] {
    {
      const MutexLock lock(&ours);
      ++a;
    }
    const absl::MutexLock lock(&abseils);
    ++b;
  });
  EXPECT_EQ(a, 2000);
  EXPECT_EQ(b, 2000);
}

}  // namespace
}  // namespace nibble
