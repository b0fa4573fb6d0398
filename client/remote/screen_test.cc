#include "client/remote/screen.h"

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(ScreenTest, TheNextDrawingStandsWhereTheLastStood) {
  Screen screen;
  EXPECT_EQ(screen.Draw({"one", "two"}, 80), "\rone\x1b[K\ntwo\x1b[K\n\x1b[J");
  EXPECT_EQ(screen.Draw({"three"}, 80), "\r\x1b[2Athree\x1b[K\n\x1b[J");
  EXPECT_EQ(screen.Draw({}, 80), "\r\x1b[1A\x1b[J");
}

TEST(ScreenTest, LinesThatANarrowerTerminalHasBrokenGoToo) {
  Screen screen;
  screen.Draw({std::string(30, 'x'), "→→→", ""}, 80);
  // 30 columns are three rows of 10; the others, one each.
  EXPECT_EQ(screen.Draw({"y"}, 10), "\r\x1b[5Ay\x1b[K\n\x1b[J");
}

}  // namespace
}  // namespace nibble
