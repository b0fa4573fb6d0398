#include "worker/trainer/report/terminal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(TerminalTest, APipeIsNoTerminalAndHasTheUsualColumns) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(IsTerminal(ends[1]));
  EXPECT_EQ(TerminalColumns(ends[1]), 80);
  close(ends[0]);
  close(ends[1]);
}

TEST(TerminalTest, ATerminalKnowsItsColumns) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0) GTEST_SKIP() << "no pseudo-terminals here";
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const int end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(end, 0);
  EXPECT_TRUE(IsTerminal(end));
  EXPECT_EQ(TerminalColumns(end), 80);  // it has not been told
  const struct winsize size = {.ws_row = 24, .ws_col = 132, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(end, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(TerminalColumns(end), 132);
  close(end);
  close(terminal);
}

}  // namespace
}  // namespace nibble
