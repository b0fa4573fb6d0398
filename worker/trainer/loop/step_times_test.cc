#include "worker/trainer/loop/step_times.h"

#include <gtest/gtest.h>

#include <memory>

#include "kernels/cpu/cpu_backend.h"

namespace nibble {
namespace {

// A clock that an event advances by a second, so that each part takes one.
class StepTimesTest : public testing::Test {
 protected:
  StepSeconds Step(double in_forward, double in_backward) {
    EXPECT_TRUE(times_.Begin().ok());
    EXPECT_TRUE(times_.End(StepPart::kData).ok());
    exchanged_ += in_forward;
    EXPECT_TRUE(times_.End(StepPart::kForward).ok());
    exchanged_ += in_backward;
    EXPECT_TRUE(times_.End(StepPart::kBackward).ok());
    EXPECT_TRUE(times_.End(StepPart::kReduce).ok());
    const absl::StatusOr<StepSeconds> seconds = times_.Read();
    EXPECT_TRUE(seconds.ok()) << seconds.status();
    EXPECT_DOUBLE_EQ(seconds->total(), 4);
    return *seconds;
  }

  double now_ = 0, exchanged_ = 5;
  const std::unique_ptr<CpuBackend> backend_ =
      *CpuBackend::Create({.threads = 1, .clock = [this] { return now_ += 1; }});
  StepTimes times_{*backend_, [this] { return exchanged_; }};
};

TEST_F(StepTimesTest, WithoutExchangesAPartHasTheTimeBetweenItsEvents) {
  const StepSeconds seconds = Step(0, 0);
  EXPECT_DOUBLE_EQ(seconds[StepPart::kForward], 1);
  EXPECT_DOUBLE_EQ(seconds[StepPart::kReduce], 1);
}

TEST_F(StepTimesTest, TimeInExchangesIsCountedAsTheReductionWhateverPartItWasSpentIn) {
  const StepSeconds seconds = Step(0.25, 0.5);
  EXPECT_DOUBLE_EQ(seconds[StepPart::kForward], 0.75);
  EXPECT_DOUBLE_EQ(seconds[StepPart::kBackward], 0.5);
  EXPECT_DOUBLE_EQ(seconds[StepPart::kReduce], 1.75);
  // More than a part has taken: none of it is left.
  EXPECT_DOUBLE_EQ(Step(2, 0)[StepPart::kForward], 0);
}

}  // namespace
}  // namespace nibble
