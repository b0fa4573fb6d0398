#include "common/connections/slowed_addresses.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(SlowedAddressesTest, AnAddressOpensOneConnectionAtATimeUntilItIsForgiven) {
  SlowedAddresses slowed({.slow_ms = 1000, .between_ms = 100});
  EXPECT_EQ(slowed.Take("a", 0), 0);
  slowed.Slow("a", 0);
  EXPECT_EQ(slowed.Take("a", 40), 60);
  EXPECT_EQ(slowed.Take("a", 100), 0);
  EXPECT_EQ(slowed.Take("a", 100), 100);
  EXPECT_EQ(slowed.Take("b", 100), 0);
  // Another connection that is ended lengthens it.
  slowed.Slow("a", 900);
  EXPECT_EQ(slowed.Take("a", 1000), 0);
  EXPECT_EQ(slowed.Take("a", 1001), 99);
  EXPECT_EQ(slowed.Take("a", 1900), 0);
  EXPECT_EQ(slowed.Take("a", 1900), 0);
  EXPECT_EQ(slowed.size(), 0u);
}

TEST(SlowedAddressesTest, TheNumberOfAddressesIsBounded) {
  SlowedAddresses slowed({.slow_ms = 1000, .between_ms = 100, .addresses = 3});
  for (int i = 0; i < 100; ++i) slowed.Slow(absl::StrCat("address", i), i);
  EXPECT_EQ(slowed.size(), 3u);
  EXPECT_EQ(slowed.Take("address96", 100), 0);
  for (const char* const kept : {"address97", "address98", "address99"}) {
    EXPECT_GT(slowed.Take(kept, 100), 0) << kept;
  }
  // Those that are forgiven make room first.
  slowed.Slow("late", 5000);
  EXPECT_EQ(slowed.size(), 1u);
}

}  // namespace
}  // namespace nibble
