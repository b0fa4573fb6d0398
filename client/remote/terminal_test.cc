#include "client/remote/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <future>
#include <optional>
#include <string>

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

TEST(ScreenTest, ColoursTakeNoColumns) {
  Screen screen;
  screen.Draw({"\x1b[32m" + std::string(10, 'x') + "\x1b[0m"}, 10);
  EXPECT_EQ(screen.Draw({"y"}, 10), "\r\x1b[1Ay\x1b[K\n\x1b[J");
}

TEST(LocaleTest, TheFirstVariableThatIsSetDecides) {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) unsetenv(name);
  EXPECT_FALSE(LocaleIsUtf8());
  setenv("LANG", "de_DE.UTF-8", 1);
  EXPECT_TRUE(LocaleIsUtf8());
  setenv("LC_CTYPE", "C.utf8", 1);
  EXPECT_TRUE(LocaleIsUtf8());
  setenv("LC_ALL", "C", 1);
  EXPECT_FALSE(LocaleIsUtf8());
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) unsetenv(name);
}

// A terminal at standard input.
class KeyboardTest : public testing::Test {
 protected:
  KeyboardTest() : before_(dup(STDIN_FILENO)), user_(posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_EQ(grantpt(user_), 0);
    EXPECT_EQ(unlockpt(user_), 0);
    const int terminal = open(ptsname(user_), O_RDWR | O_NOCTTY);
    dup2(terminal, STDIN_FILENO);
    close(terminal);
  }
  ~KeyboardTest() override {
    dup2(before_, STDIN_FILENO);
    close(before_);
    close(user_);
  }

  static bool WaitsForReturn() {
    struct termios mode = {};
    EXPECT_EQ(tcgetattr(STDIN_FILENO, &mode), 0);
    return (mode.c_lflag & ICANON) != 0 && (mode.c_lflag & ECHO) != 0;
  }

  // The terminal passes keys on in its own time.
  static void AwaitKey() {
    pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&ready, 1, 60'000), 1);
  }

  const int before_;
  const int user_;  // the user's end
};

TEST_F(KeyboardTest, KeysArriveWithoutReturnAndTheModeIsRestored) {
  ASSERT_TRUE(WaitsForReturn());
  {
    const Keyboard keyboard;
    ASSERT_TRUE(keyboard.active());
    EXPECT_FALSE(WaitsForReturn());
    EXPECT_EQ(keyboard.Read(), std::nullopt);
    ASSERT_EQ(write(user_, "lq", 2), 2);
    AwaitKey();
    EXPECT_EQ(keyboard.Read(), 'l');
    AwaitKey();
    EXPECT_EQ(keyboard.Read(), 'q');
    EXPECT_EQ(keyboard.Read(), std::nullopt);
  }
  EXPECT_TRUE(WaitsForReturn());
}

TEST_F(KeyboardTest, AnInterruptRestoresTheModeAtOnce) {
  Interrupt interrupt;
  const Keyboard keyboard;
  EXPECT_FALSE(WaitsForReturn());
  raise(SIGINT);
  EXPECT_TRUE(WaitsForReturn());
  EXPECT_EQ(keyboard.Read(), std::nullopt);
}

TEST_F(KeyboardTest, AfterASuspensionKeysAreReadAgain) {
  const Keyboard keyboard;
  struct termios shell = {};
  ASSERT_EQ(tcgetattr(STDIN_FILENO, &shell), 0);
  shell.c_lflag |= ICANON | ECHO;
  ASSERT_EQ(tcsetattr(STDIN_FILENO, TCSANOW, &shell), 0);
  raise(SIGCONT);
  EXPECT_FALSE(WaitsForReturn());
}

TEST_F(KeyboardTest, ASignalThatEndsTheProcessRestoresTheMode) {
  ASSERT_EXIT(
      {
        const Keyboard keyboard;
        if (WaitsForReturn()) _exit(1);
        raise(SIGHUP);
      },
      testing::KilledBySignal(SIGHUP), "");
  EXPECT_TRUE(WaitsForReturn());
}

TEST(NoKeyboardTest, WithoutATerminalNoKeysAreRead) {
  const int before = dup(STDIN_FILENO);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  close(null);
  {
    const Keyboard keyboard;
    EXPECT_FALSE(keyboard.active());
    EXPECT_EQ(keyboard.Read(), std::nullopt);
  }
  dup2(before, STDIN_FILENO);
  close(before);
}

}  // namespace

}  // namespace nibble
