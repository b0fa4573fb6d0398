#include "common/stall/cut_off.h"

#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(CutOffTest, AMessageIsPercentEncodedAndClipped) {
  EXPECT_EQ(HeaderText("took none for 120 ms; allowed: 100"), "took none for 120 ms; allowed: 100");
  EXPECT_EQ(HeaderText("50 %\n\xc3\xa9~"), "50 %25%0a%c3%a9~");
  EXPECT_EQ(HeaderText(std::string(2000, 'x')), std::string(1024, 'x'));
}

}  // namespace
}  // namespace nibble
