#include "server/service/rate_limiter.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(RateLimit, APeerGetsItsBurstThenItsRate) {
  ManualClock clock(1000);
  RateLimiter limiter(clock, {.per_second = 10, .burst = 3});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limiter.Take("a"), absl::OkStatus());
  const absl::Status refused = limiter.Take("a");
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(), "requests of a: allowed: 10 per second; retry in 100 ms");
  clock.Advance(99);
  EXPECT_FALSE(limiter.Take("a").ok());
  clock.Advance(1);
  EXPECT_TRUE(limiter.Take("a").ok());
  EXPECT_FALSE(limiter.Take("a").ok());
}

TEST(RateLimit, NoPeerTakesFromAnother) {
  ManualClock clock(1000);
  RateLimiter limiter(clock, {.per_second = 1, .burst = 1});
  EXPECT_TRUE(limiter.Take("a").ok());
  EXPECT_FALSE(limiter.Take("a").ok());
  EXPECT_TRUE(limiter.Take("b").ok());
}

TEST(RateLimit, TheNumberOfBucketsIsBounded) {
  ManualClock clock(1000);
  RateLimiter limiter(clock, {.per_second = 1, .burst = 2, .peers = 3});
  int allowed = 0;
  for (int i = 0; i < 100; ++i) allowed += limiter.Take(absl::StrCat("peer", i)).ok();
  EXPECT_EQ(allowed, 3 + 2);  // three buckets of their own, one shared by the others
  EXPECT_LE(limiter.size(), 4u);
  // Buckets that are full again are dropped.
  clock.Advance(10'000);
  EXPECT_TRUE(limiter.Take("late").ok());
  EXPECT_EQ(limiter.size(), 1u);
}

TEST(RateLimit, FullBucketsMakeWayForTheFirstPeerThatHasNone) {
  ManualClock clock(1000);
  RateLimiter limiter(clock, {.per_second = 1, .burst = 2, .peers = 3});
  for (const char* peer : {"a", "b", "c"}) EXPECT_TRUE(limiter.Take(peer).ok());
  // "a" is full again after a second; the others have taken once more.
  EXPECT_TRUE(limiter.Take("b").ok());
  EXPECT_TRUE(limiter.Take("c").ok());
  clock.Advance(1000);
  EXPECT_TRUE(limiter.Take("d").ok());
  EXPECT_EQ(limiter.size(), 3u);
  EXPECT_TRUE(limiter.Take("d").ok());
  EXPECT_EQ(limiter.Take("d").message(), "requests of d: allowed: 1 per second; retry in 1000 ms");
}

TEST(RateLimit, WithoutARateNothingIsLimitedOrStored) {
  ManualClock clock(1000);
  RateLimiter limiter(clock, {.per_second = 0});
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(limiter.Take("a").ok());
  EXPECT_EQ(limiter.size(), 0u);
}

TEST(RateLimit, AWallClockJumpChangesNoTokens) {
  ManualClock clock(100'000);
  RateLimiter limiter(clock, {.per_second = 1, .burst = 5});
  EXPECT_TRUE(limiter.Take("a").ok());
  clock.JumpWall(-50'000);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(limiter.Take("a").ok());
  clock.JumpWall(100'000);
  EXPECT_FALSE(limiter.Take("a").ok());
}

TEST(RateLimit, RefusalsGoOutOneAfterTheOther) {
  ManualClock clock(1000);
  RateLimiter limiter(clock, {.refusals_per_second = 100, .refusal_wait_ms = 50});
  // The first one at once, so that a caller that has gone too far hears of it.
  for (int i = 0; i <= 5; ++i) EXPECT_EQ(limiter.Refuse("a").after_ms, 10 * i);
  EXPECT_EQ(limiter.Refuse("b").after_ms, 0);
  clock.Advance(30);
  EXPECT_EQ(limiter.Refuse("a").after_ms, 30);
  clock.Advance(1000);
  EXPECT_EQ(limiter.Refuse("a").after_ms, 0);
}

TEST(RateLimit, ABacklogOfRefusalsIsAFloodUntilItIsShorterAgain) {
  ManualClock clock(1000);
  RateLimiter limiter(clock, {.refusals_per_second = 100, .refusal_wait_ms = 50});
  int turns = 0;
  while (!limiter.Refuse("a").flooding) ++turns;
  EXPECT_EQ(turns, 6);
  // What has no turn does not lengthen the backlog.
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(limiter.Refuse("a").flooding);
  EXPECT_FALSE(limiter.Refuse("b").flooding);
  clock.Advance(10);
  const RefusalTurn turn = limiter.Refuse("a");
  EXPECT_FALSE(turn.flooding);
  EXPECT_EQ(turn.after_ms, 50);
  EXPECT_TRUE(limiter.Refuse("a").flooding);
}

TEST(RateLimit, ABucketThatOwesRefusalsIsKept) {
  ManualClock clock(1000);
  RateLimiter limiter(clock, {.per_second = 1000,
                              .burst = 1,
                              .peers = 1,
                              .refusals_per_second = 10,
                              .refusal_wait_ms = 1000});
  for (int i = 0; i < 10; ++i) limiter.Refuse("a");
  clock.Advance(100);
  EXPECT_TRUE(limiter.Take("b").ok());  // shares the bucket of others
  EXPECT_EQ(limiter.Refuse("a").after_ms, 900);
}

TEST(RateLimit, WithoutAPaceRefusalsGoOutAtOnce) {
  ManualClock clock(1000);
  RateLimiter limiter(clock, {.refusals_per_second = 0});
  for (int i = 0; i < 10'000; ++i) {
    const RefusalTurn turn = limiter.Refuse("a");
    ASSERT_FALSE(turn.flooding);
    ASSERT_EQ(turn.after_ms, 0);
  }
  EXPECT_EQ(limiter.size(), 0u);
}

}  // namespace
}  // namespace nibble
