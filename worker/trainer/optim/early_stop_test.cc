#include "worker/trainer/optim/early_stop.h"

#include <limits>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(EarlyStopTest, ItStopsAfterAsManyValidationsWithoutABetterOne) {
  EarlyStop early(2, 0);
  for (const double loss : {5.0, 4.0, 4.0, 3.9, 4.5}) {
    early.Observe(loss);
    EXPECT_FALSE(early.stops()) << loss;
  }
  early.Observe(3.9);
  EXPECT_TRUE(early.stops());
  EXPECT_EQ(early.state(), (EarlyStop::State{.best = 3.9, .since = 2}));
}

TEST(EarlyStopTest, AnImprovementUpToTheLeastIsNone) {
  EarlyStop early(1, 0.5);
  early.Observe(4.0);
  EXPECT_FALSE(early.stops());
  early.Observe(3.5);
  EXPECT_TRUE(early.stops());
}

TEST(EarlyStopTest, WithoutPatienceItNeverStops) {
  EarlyStop early(0, 0);
  for (int i = 0; i < 100; ++i) early.Observe(1.0);
  EXPECT_FALSE(early.stops());
}

TEST(EarlyStopTest, NumbersThatAreNoneAreNoImprovement) {
  EarlyStop early(2, 0);
  early.Observe(std::numeric_limits<double>::quiet_NaN());
  early.Observe(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(early.stops());
}

TEST(EarlyStopTest, ContinuedFromItsStateItStopsWhereItWouldHave) {
  EarlyStop whole(2, 0.1), first(2, 0.1), second(2, 0.1);
  for (const double loss : {5.0, 4.95}) {
    whole.Observe(loss);
    first.Observe(loss);
  }
  second.Restore(first.state());
  whole.Observe(4.92);
  second.Observe(4.92);
  EXPECT_TRUE(whole.stops());
  EXPECT_TRUE(second.stops());
}

}  // namespace
}  // namespace nibble
