#include "common/backoff.h"

#include <chrono>

#include "gtest/gtest.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;

TEST(BackoffTest, WaitsGrowToTheBoundAndAreShortAgainAfterASuccess) {
  Backoff backoff({.first = milliseconds(100), .most = milliseconds(1000), .seed = 7});
  for (const int bound : {100, 200, 400, 800, 1000, 1000, 1000}) {
    const milliseconds wait = backoff.Next();
    EXPECT_GE(wait, milliseconds(bound / 2));
    EXPECT_LE(wait, milliseconds(bound));
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(), milliseconds(100));
}

TEST(BackoffTest, UsersWithDifferentSeedsWaitDifferently) {
  Backoff one({.first = milliseconds(4000), .most = milliseconds(4000), .seed = 1});
  Backoff two({.first = milliseconds(4000), .most = milliseconds(4000), .seed = 2});
  EXPECT_NE(one.Next(), two.Next());
}

}  // namespace
}  // namespace nibble
