#include "kernels/cpu/layers/cpu_step_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/layers/layer_testing.h"
#include "kernels/tensor/quantized_tensor.h"

namespace nibble::cpu {
namespace {

StepNumbers Sum(const std::vector<float>& x, const std::vector<int32_t>& targets,
                StepNumbers numbers = {}) {
  CpuStepOps ops;
  EXPECT_TRUE(ops.Run(AddLosses{.x = x.data(),
                                .targets = targets.data(),
                                .n = static_cast<int64_t>(x.size()),
                                .numbers = &numbers})
                  .ok());
  return numbers;
}

TEST(StepOpsTest, LossesAndTheirTargetsAreAddedToThoseOfEarlierMicroBatches) {
  for (const int64_t n : {0, 1, 1023, 1024, 1025, 5000}) {
    const std::vector<float> x = RandomFloats(n, 3);
    std::vector<int32_t> targets(n, 7);
    for (int64_t i = 0; i < n; i += 5) targets[i] = -1;
    const StepNumbers sum = Sum(x, targets, {.loss = 2, .targets = 3});
    long double expected = 2;
    for (const float v : x) expected += v;
    EXPECT_NEAR(sum.loss, static_cast<double>(expected), 1e-12 * (1 + std::abs(sum.loss))) << n;
    EXPECT_EQ(sum.targets, static_cast<double>(3 + n - (n + 4) / 5)) << n;
  }
}

TEST(StepOpsTest, TheOrderOfASumIsThePromisedOne) {
  // Partial sums 0 and 512 meet first; in another order the small terms would be lost.
  std::vector<float> x(2048, 0.0f);
  x[0] = 1e16f;
  x[512] = -1e16f;
  x[1024] = 0.0f;
  x[1] = 1.0f;
  EXPECT_EQ(Sum(x, std::vector<int32_t>(2048, 0)).loss,
            static_cast<double>(1e16f) + static_cast<double>(-1e16f) + 1.0);
}

TEST(StepOpsTest, NonFiniteElementsAreCountedByHeadAndTogether) {
  struct Padded {
    QuantHead head;
    char gap[64];
  };
  std::vector<Padded> heads(3);
  heads[0].head.non_finite = 2;
  heads[2].head.non_finite = 5;
  std::vector<uint64_t> by_head = {1, 0, 0};
  StepNumbers numbers = {.non_finite = 10};
  CpuStepOps ops;
  ASSERT_TRUE(ops.Run(CountNonFinite{.heads = heads.data(),
                                     .count = 3,
                                     .stride = sizeof(Padded),
                                     .by_head = by_head.data(),
                                     .numbers = &numbers})
                  .ok());
  EXPECT_EQ(numbers.non_finite, 17u);
  EXPECT_EQ(by_head, (std::vector<uint64_t>{3, 0, 5}));
}

StepOutcome Judged(const std::vector<StepNumbers>& ranks, float max_norm, double bound = kInf,
                   double norm_bound = kInf) {
  StepOutcome outcome;
  CpuStepOps ops;
  EXPECT_TRUE(ops.Run(Judge{.numbers = ranks.data(),
                            .world = static_cast<int>(ranks.size()),
                            .max_norm = max_norm,
                            .loss_bound = bound,
                            .norm_bound = norm_bound,
                            .outcome = &outcome})
                  .ok());
  return outcome;
}

TEST(StepOpsTest, TheOutcomeIsOfAllRanks) {
  const StepOutcome outcome = Judged(
      {{.loss = 6, .targets = 2, .squares = 9}, {.loss = 4, .targets = 3, .squares = 16}}, 1);
  EXPECT_EQ(outcome.loss, 2);
  EXPECT_EQ(outcome.targets, 5);
  EXPECT_EQ(outcome.norm, 5);
  EXPECT_EQ(outcome.scale, 0.2f);
  EXPECT_EQ(outcome.update, 1u);
}

TEST(StepOpsTest, OnlyALongGradientIsClipped) {
  const std::vector<StepNumbers> four = {{.loss = 1, .targets = 1, .squares = 16}};
  EXPECT_EQ(Judged(four, 1).norm, 4);
  EXPECT_EQ(Judged(four, 1).scale, 0.25f);
  EXPECT_EQ(Judged(four, 4).scale, 1);
  EXPECT_EQ(Judged(four, 8).scale, 1);
  EXPECT_EQ(Judged(four, 0).scale, 1);
  EXPECT_EQ(Judged({{.loss = 1, .targets = 1}}, 8).scale, 1);
}

TEST(StepOpsTest, NoUpdateIsMadeFromNumbersThatAreNotFiniteOrFromALossAboveTheBound) {
  const auto updates = [](const StepNumbers& numbers, double bound = kInf) {
    return Judged({{.loss = 1, .targets = 1, .squares = 1}, numbers}, 1, bound).update;
  };
  EXPECT_EQ(updates({.loss = 3, .targets = 1}), 1u);
  EXPECT_EQ(updates({.loss = 3, .targets = 1}, 2), 1u);
  EXPECT_EQ(updates({.loss = 3.1, .targets = 1}, 2), 0u);
  EXPECT_EQ(updates({.loss = kNan, .targets = 1}), 0u);
  EXPECT_EQ(updates({.loss = kInf, .targets = 1}), 0u);
  EXPECT_EQ(updates({.squares = kNan}), 0u);
  EXPECT_EQ(updates({.squares = 1e80}), 0u);  // its root is no FP32 number
  EXPECT_EQ(updates({.non_finite = 1}), 0u);
  // A step without targets has no loss, and is no reason to stop.
  EXPECT_EQ(Judged({{.squares = 1}}, 1).loss, 0);
  EXPECT_EQ(Judged({{.squares = 1}}, 1).update, 1u);
}

TEST(StepOpsTest, NoUpdateIsMadeFromAGradientNormAboveItsBound) {
  const std::vector<StepNumbers> four = {{.loss = 1, .targets = 1, .squares = 16}};
  EXPECT_EQ(Judged(four, 1, kInf, 4).update, 1u);
  EXPECT_EQ(Judged(four, 1, kInf, 3.9).update, 0u);
  EXPECT_EQ(Judged(four, 0, kInf, 3.9).norm, 4);
}

TEST(StepOpsTest, ErrorsNameOperationFieldAndBound) {
  CpuStepOps ops;
  StepNumbers numbers;
  StepOutcome outcome;
  EXPECT_EQ(Refusal(ops.Run(AddLosses{.n = 4, .numbers = &numbers})),
            "add losses: x is null but must hold 4 elements");
  EXPECT_EQ(Refusal(ops.Run(CountNonFinite{.count = -1, .numbers = &numbers})),
            "count non-finite: count is -1, below 0");
  EXPECT_EQ(Refusal(ops.Run(Judge{.numbers = &numbers, .max_norm = -1, .outcome = &outcome})),
            "judge: max_norm is -1, below 0");
  EXPECT_EQ(Refusal(ops.Run(Judge{.numbers = &numbers, .loss_bound = kNan, .outcome = &outcome})),
            "judge: loss_bound is NaN");
  EXPECT_EQ(Refusal(ops.Run(Judge{.numbers = &numbers, .norm_bound = kNan, .outcome = &outcome})),
            "judge: norm_bound is NaN");
}

}  // namespace
}  // namespace nibble::cpu
