#include "common/stall/stall_look.h"

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(StallLookTest, OnlyAReaderForWhomSomethingWaitsStalls) {
  StallLook look;
  EXPECT_EQ(look.Look(1000, true, 0), 0);
  EXPECT_EQ(look.Look(1300, true, 0), 300);
  EXPECT_EQ(look.Look(1400, true, 1), 0);  // it has read
  EXPECT_EQ(look.Look(1500, true, 1), 100);
  EXPECT_EQ(look.Look(1600, false, 1), 0);  // nothing waits
  EXPECT_EQ(look.Look(9000, false, 1), 0);
  EXPECT_EQ(look.Look(9100, true, 1), 100);
}

TEST(StallLookTest, TheReasonNamesTheReaderAndTheBound) {
  EXPECT_EQ(ReadsTooSlowly("the watch", 120, 100, "resume from its token").message(),
            "the watch reads too slowly: it took no message for 120 ms; allowed: 100; resume from "
            "its token");
}

}  // namespace
}  // namespace nibble
