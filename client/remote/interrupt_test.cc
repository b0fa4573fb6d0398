#include "client/remote/interrupt.h"

#include <signal.h>

#include <future>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

TEST(InterruptTest, ASignalEndsASleepAndMakesTheCallOnce) {
  Interrupt interrupt;
  std::promise<void> called;
  const Interrupt::Call call(interrupt, [&called] { called.set_value(); });
  EXPECT_FALSE(interrupt.happened());
  raise(SIGINT);
  const absl::Time begun = absl::Now();
  interrupt.SleepFor(kLong);
  EXPECT_LT(absl::Now() - begun, kLong);
  EXPECT_TRUE(interrupt.happened());
  called.get_future().get();
}

TEST(InterruptTest, ACallThatComesLateIsMadeAtOnce) {
  Interrupt interrupt;
  raise(SIGTERM);
  interrupt.SleepFor(kLong);
  bool called = false;
  const Interrupt::Call call(interrupt, [&called] { called = true; });
  EXPECT_TRUE(called);
}

TEST(InterruptTest, AfterwardsSignalsAreAsTheyWere) {
  struct sigaction mine = {};
  mine.sa_handler = SIG_IGN;
  sigaction(SIGINT, &mine, nullptr);
  { Interrupt interrupt; }
  struct sigaction now = {};
  sigaction(SIGINT, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
  signal(SIGINT, SIG_DFL);
}

}  // namespace
}  // namespace nibble
