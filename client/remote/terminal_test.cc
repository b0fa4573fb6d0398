#include "client/remote/terminal.h"

#include <signal.h>

#include <future>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

TEST(InterruptTest, ASignalEndsTheSleepAndRunsTheCallOnce) {
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

TEST(InterruptTest, ACallAfterTheSignalRunsAtOnce) {
  Interrupt interrupt;
  raise(SIGTERM);
  interrupt.SleepFor(kLong);
  bool called = false;
  const Interrupt::Call call(interrupt, [&called] { called = true; });
  EXPECT_TRUE(called);
}

TEST(InterruptTest, ItsDestructorRestoresTheSignalHandlers) {
  struct sigaction mine = {};
  mine.sa_handler = SIG_IGN;
  sigaction(SIGINT, &mine, nullptr);
  { Interrupt interrupt; }
  struct sigaction now = {};
  sigaction(SIGINT, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
  signal(SIGINT, SIG_DFL);
}

TEST(ScreenTest, EachDrawingReplacesTheLast) {
  Screen screen;
  EXPECT_EQ(screen.Draw({"one", "two"}, 80), "\rone\x1b[K\ntwo\x1b[K\n\x1b[J");
  EXPECT_EQ(screen.Draw({"three"}, 80), "\r\x1b[2Athree\x1b[K\n\x1b[J");
  EXPECT_EQ(screen.Draw({}, 80), "\r\x1b[1A\x1b[J");
}

TEST(ScreenTest, LinesWrappedByANarrowerTerminalAreErased) {
  Screen screen;
  screen.Draw({std::string(30, 'x'), "→→→", ""}, 80);
  // 30 columns are three rows of 10; the others, one each.
  EXPECT_EQ(screen.Draw({"y"}, 10), "\r\x1b[5Ay\x1b[K\n\x1b[J");
}

}  // namespace

}  // namespace nibble
