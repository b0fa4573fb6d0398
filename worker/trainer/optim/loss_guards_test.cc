#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/optim/loss_guards.h"

namespace nibble {
namespace {

TEST(EarlyStopTest, ItStopsAfterPatienceValidationsWithoutImprovement) {
  EarlyStop early(2, 0);
  for (const double loss : {5.0, 4.0, 4.0, 3.9, 4.5}) {
    early.Observe(loss);
    EXPECT_FALSE(early.stops()) << loss;
  }
  early.Observe(3.9);
  EXPECT_TRUE(early.stops());
  EXPECT_EQ(early.state(), (EarlyStop::State{.best = 3.9, .since = 2}));
}

TEST(EarlyStopTest, AnImprovementUpToMinDeltaDoesNotCount) {
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

TEST(EarlyStopTest, NanIsNotAnImprovement) {
  EarlyStop early(2, 0);
  early.Observe(std::numeric_limits<double>::quiet_NaN());
  early.Observe(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(early.stops());
}

TEST(EarlyStopTest, RestoredFromItsStateItStopsAtTheSameValidation) {
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

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A training curve: a power law with noise of 2 %.
class Curve {
 public:
  explicit Curve(uint64_t seed) : random_(seed) {}
  double Next() {
    const double level = 2.0 + 8.0 * std::pow(1 + step_ / 20, -0.7);
    step_ += 1;
    return level * (1 + noise_(random_));
  }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> noise_{0, 0.02};
  double step_ = 0;
};

SpikeGuard Filled(int64_t window, double level = 4.0) {
  SpikeGuard guard({.z = 6, .window = window});
  for (int64_t i = 0; i < window; ++i) guard.Observe(level + (i % 2 ? 0.01 : -0.01));
  return guard;
}

TEST(SpikeGuardTest, ACurveThatFallsRaisesNoAlarm) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Curve curve(seed);
    SpikeGuard guard({.z = 6, .window = 64});
    for (int step = 0; step < 3000; ++step) {
      ASSERT_FALSE(guard.Observe(curve.Next()).spike) << "seed " << seed << " step " << step;
    }
  }
}

TEST(SpikeGuardTest, ACurveWithoutNoiseRaisesNoAlarm) {
  SpikeGuard guard({.z = 3, .window = 16});
  for (int step = 0; step < 2000; ++step) {
    ASSERT_FALSE(guard.Observe(2.0 + std::exp(-step / 50.0)).spike) << step;
  }
}

TEST(SpikeGuardTest, APlateauOfEqualLossesToleratesTheLastDigits) {
  SpikeGuard guard({.z = 6, .window = 8});
  for (int i = 0; i < 8; ++i) guard.Observe(3.0);
  EXPECT_FALSE(guard.Observe(3.001).spike);
  EXPECT_TRUE(guard.Observe(3.03).spike);
}

TEST(SpikeGuardTest, ASpikeIsFoundAndMeasuredByHand) {
  SpikeGuard guard({.z = 6, .window = 4});
  for (const double loss : {3.0, 5.0, 3.0, 5.0}) guard.Observe(loss);  // mean 4, deviation 1
  EXPECT_EQ(guard.Observe(10.5), (SpikeGuard::Verdict{.spike = true, .z = 6.5}));
  EXPECT_EQ(guard.Observe(9.5), (SpikeGuard::Verdict{.spike = false, .z = 5.5}));
}

TEST(SpikeGuardTest, SpikesAreFoundOnARealCurve) {
  Curve curve(7);
  SpikeGuard guard({.z = 6, .window = 64});
  for (int step = 0; step < 1000; ++step) {
    const double loss = curve.Next();
    if (step == 500 || step == 503) {
      EXPECT_TRUE(guard.Observe(1.5 * loss).spike) << step;
    } else {
      EXPECT_FALSE(guard.Observe(loss).spike) << step;
    }
  }
}

TEST(SpikeGuardTest, AFallIsNotASpike) {
  SpikeGuard guard = Filled(8);
  const SpikeGuard::Verdict verdict = guard.Observe(1.0);
  EXPECT_FALSE(verdict.spike);
  EXPECT_LT(verdict.z, -100);
}

TEST(SpikeGuardTest, NothingIsJudgedUntilTheWindowIsFull) {
  SpikeGuard guard({.z = 6, .window = 4});
  for (const double loss : {1.0, 1.0, 1.0, 1000.0}) {
    EXPECT_EQ(guard.Observe(loss), SpikeGuard::Verdict());
  }
  EXPECT_NE(guard.Observe(1.0).z, 0);
}

TEST(SpikeGuardTest, SpikesDoNotEnterTheWindow) {
  SpikeGuard guard = Filled(8);
  const SpikeGuard::State before = guard.state();
  const double z = guard.Observe(8.0).z;
  EXPECT_EQ(guard.state().values, before.values);
  EXPECT_EQ(guard.Observe(8.0).z, z);
  EXPECT_EQ(guard.state().in_a_row, 2);
  EXPECT_FALSE(guard.Observe(4.0).spike);
  EXPECT_EQ(guard.state().in_a_row, 0);
}

TEST(SpikeGuardTest, APersistentNewLevelIsAccepted) {
  SpikeGuard guard = Filled(8);
  for (int64_t i = 1; i < SpikeGuard::kMostInARow; ++i) {
    const SpikeGuard::Verdict verdict = guard.Observe(6.0);
    EXPECT_TRUE(verdict.spike);
    EXPECT_FALSE(verdict.new_level);
  }
  const SpikeGuard::Verdict last = guard.Observe(6.0);
  EXPECT_TRUE(last.spike);
  EXPECT_TRUE(last.new_level);
  EXPECT_THAT(guard.state().values, ElementsAre(6.0));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(guard.Observe(6.0).spike);
  EXPECT_TRUE(guard.Observe(9.0).spike);
}

TEST(SpikeGuardTest, NanAndInfinityAreSpikesThatDoNotEnterTheWindow) {
  SpikeGuard guard({.z = 6, .window = 4});
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity()}) {
    for (int i = 0; i < 20; ++i) {
      const SpikeGuard::Verdict verdict = guard.Observe(bad);
      EXPECT_TRUE(verdict.spike);
      EXPECT_FALSE(verdict.new_level);
      EXPECT_EQ(verdict.z, std::numeric_limits<double>::infinity());
    }
  }
  EXPECT_EQ(guard.state(), SpikeGuard::State());
}

TEST(SpikeGuardTest, LargestLossesDoNotOverflow) {
  SpikeGuard guard({.z = 6, .window = 4});
  for (int i = 0; i < 4; ++i) guard.Observe(1e300);
  const SpikeGuard::Verdict verdict = guard.Observe(1e300);
  EXPECT_FALSE(verdict.spike);
  EXPECT_EQ(verdict.z, 0);
}

TEST(SpikeGuardTest, ARestoredGuardBehavesLikeTheOriginal) {
  for (const int cut : {0, 5, 40, 63, 64, 200, 205}) {
    Curve curve(3);
    SpikeGuard whole({.z = 6, .window = 64});
    SpikeGuard restored({.z = 6, .window = 64});
    for (int step = 0; step < 400; ++step) {
      const double loss = curve.Next() * (step >= 200 && step < 208 ? 2 : 1);
      if (step == cut) {
        ASSERT_TRUE(restored.Restore(whole.state()).ok());
      }
      const SpikeGuard::Verdict expected = whole.Observe(loss);
      if (step >= cut) {
        ASSERT_EQ(restored.Observe(loss), expected) << cut << " " << step;
      }
    }
    EXPECT_EQ(restored.state(), whole.state());
  }
}

TEST(SpikeGuardTest, AnInvalidStateIsRefused) {
  SpikeGuard guard({.z = 6, .window = 4});
  EXPECT_THAT(std::string(guard.Restore({.values = {1, std::nan("")}}).message()),
              HasSubstr("values: nan is not finite"));
  EXPECT_FALSE(guard.Restore({.in_a_row = -1}).ok());
  EXPECT_FALSE(guard.Restore({.in_a_row = SpikeGuard::kMostInARow}).ok());
  EXPECT_THAT(guard.state().values, IsEmpty());
}

TEST(SpikeGuardTest, RestoringALargerWindowKeepsItsLastLosses) {
  SpikeGuard guard({.z = 6, .window = 2});
  ASSERT_TRUE(guard.Restore({.values = {1, 2, 3, 4}}).ok());
  EXPECT_THAT(guard.state().values, ElementsAre(3, 4));
  guard.Observe(5);
  EXPECT_THAT(guard.state().values, SizeIs(2));
}

}  // namespace
}  // namespace nibble
