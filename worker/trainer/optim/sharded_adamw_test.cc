#include "worker/trainer/optim/sharded_adamw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/formats/bfloat16.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/model/model_testing.h"
#include "worker/trainer/optim/step_decision.h"

namespace nibble {
namespace {

struct Rig {
  explicit Rig(const ShardedAdamW::Options& options)
      : device(2), collective(CreateLocal()), outline(*MakeOutline(HybridSpec())) {
    parameters = *Parameters::Create(device.device(), outline, 1);
    optimizer = *ShardedAdamW::Create(device.device(), *parameters, *collective, options);
    decision = *StepDecision::Create(device.device(), *collective);
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (size_t p = 0; p < outline.params.size(); ++p) {
      const auto index = static_cast<int64_t>(p);
      for (int64_t i = 0; i < outline.params[p].elements(); ++i) {
        parameters->gradient(index)[i] = normal(random);
      }
    }
  }
  StepOutcome Decide(float max_norm) {
    EXPECT_TRUE(decision->Clear().ok());
    EXPECT_TRUE(optimizer->FinishReduce(decision->mine()).ok());
    EXPECT_TRUE(decision
                    ->Decide(max_norm, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::infinity())
                    .ok());
    return *decision->Read();
  }
  absl::Status Update(int64_t update, double lr) {
    return optimizer->Update(decision->on_device(), update, lr, [] { return absl::OkStatus(); });
  }
  double Norm() const {
    double sum = 0;
    for (int64_t i = 0; i < parameters->elements(); ++i) {
      sum += double{parameters->gradients()[i]} * parameters->gradients()[i];
    }
    return std::sqrt(sum);
  }

  TestDevice device;
  std::unique_ptr<Collective> collective;
  Outline outline;
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<ShardedAdamW> optimizer;
  std::unique_ptr<StepDecision> decision;
};

TEST(ShardedAdamW, TwoUpdatesFollowTheFormulaWithDecayOnMatricesOnly) {
  const ShardedAdamW::Options options = {.weight_decay = 0.5f};
  Rig rig(options);
  const int64_t n = rig.parameters->elements();
  std::vector<double> w(rig.parameters->weights(), rig.parameters->weights() + n), m(n), v(n);
  constexpr double kLr = 0.01;
  for (int t = 1; t <= 2; ++t) {
    rig.Decide(/*max_norm=*/0);
    ASSERT_TRUE(rig.Update(t, kLr).ok());
    for (size_t p = 0; p < rig.outline.params.size(); ++p) {
      const ParamInfo& param = rig.outline.params[p];
      const int64_t first = rig.parameters->offset(static_cast<int64_t>(p));
      for (int64_t i = first; i < first + param.elements(); ++i) {
        const double g = rig.parameters->gradients()[i];
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.95 * v[i] + 0.05 * g * g;
        if (param.decay) w[i] -= kLr * 0.5 * w[i];
        w[i] -= kLr * (m[i] / (1 - std::pow(0.9, t))) /
                (std::sqrt(v[i] / (1 - std::pow(0.95, t))) + 1e-8);
        ASSERT_NEAR(rig.parameters->weights()[i], w[i], 2e-6 * (1 + std::abs(w[i])))
            << param.name << " after update " << t;
      }
    }
  }
}

TEST(ShardedAdamW, TheNormIsOverAllGradientsBeforeClipping) {
  Rig rig({});
  const double norm = rig.Norm();
  EXPECT_NEAR(rig.Decide(/*max_norm=*/1).norm / norm, 1.0, 1e-6);
}

TEST(ShardedAdamW, ClippingUsesTheGlobalNorm) {
  Rig rig({});
  const double norm = rig.Norm();
  ASSERT_GT(norm, 1.0);
  rig.Decide(/*max_norm=*/1);
  ASSERT_TRUE(rig.Update(1, 0.01).ok());
  for (int64_t i = 0; i < rig.optimizer->elements(); ++i) {
    const double g = rig.parameters->gradients()[i] / norm;
    ASSERT_NEAR(rig.optimizer->first_moment()[i], 0.1 * g, 1e-6 * (1e-3 + std::abs(g)));
  }
}

TEST(ShardedAdamW, ANonFiniteGradientMakesTheNormNonFiniteAndTheUpdateLeavesTheWeights) {
  Rig rig({});
  rig.parameters->gradients()[5] = std::numeric_limits<float>::quiet_NaN();
  const int64_t n = rig.parameters->elements();
  const std::vector<float> before(rig.parameters->weights(), rig.parameters->weights() + n);
  const StepOutcome outcome = rig.Decide(/*max_norm=*/1);
  EXPECT_TRUE(std::isnan(outcome.norm));
  EXPECT_EQ(outcome.update, 0u);
  ASSERT_TRUE(rig.Update(1, 0.1).ok());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), rig.parameters->weights()));
}

TEST(ShardedAdamW, UpdatesWriteTheCopiesThatWereAskedForAndChangeNoWeight) {
  Rig plain({}), copied({});
  std::vector<WorkingCopy> copies(copied.outline.params.size());
  std::vector<std::vector<uint16_t>> bf16(copies.size());
  std::vector<float> amaxes(copies.size(), -1);
  for (size_t p = 0; p < copies.size(); ++p) {
    if (p % 3 == 2) continue;  // among others that have none
    bf16[p].assign(copied.outline.params[p].elements(), 0x1234);
    copies[p] = {.bf16 = p % 3 == 0 ? bf16[p].data() : nullptr, .amax = &amaxes[p]};
  }
  copied.optimizer->SetCopies(copies);
  // A step without an update.
  const float gradient = copied.parameters->gradients()[5];
  copied.parameters->gradients()[5] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_EQ(copied.Decide(/*max_norm=*/1).update, 0u);
  ASSERT_TRUE(copied.Update(1, 0.1).ok());
  EXPECT_EQ(bf16[0], std::vector<uint16_t>(bf16[0].size(), 0x1234));
  EXPECT_EQ(amaxes, std::vector<float>(copies.size(), -1));
  copied.parameters->gradients()[5] = gradient;
  for (Rig* rig : {&plain, &copied}) {
    rig->Decide(/*max_norm=*/1);
    ASSERT_TRUE(rig->Update(1, 0.1).ok());
  }
  const float* const weights = copied.parameters->weights();
  EXPECT_TRUE(
      std::equal(weights, weights + copied.parameters->elements(), plain.parameters->weights()));
  for (size_t p = 0; p < copies.size(); ++p) {
    const int64_t n = copied.outline.params[p].elements();
    const float* const of = copied.parameters->weight(static_cast<int64_t>(p));
    float largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      largest = std::max(largest, std::abs(of[i]));
      if (p % 3 == 0) {
        ASSERT_EQ(bf16[p][i], EncodeBf16(of[i])) << p << " " << i;
      }
    }
    EXPECT_EQ(amaxes[p], p % 3 == 2 ? -1 : largest) << p;
  }
}

TEST(ShardedAdamW, TheGapsBetweenParametersStayZero) {
  Rig rig({});
  std::vector<uint16_t> bf16(rig.outline.params[0].elements());
  std::vector<WorkingCopy> copies(rig.outline.params.size());
  copies[0].bf16 = bf16.data();
  rig.optimizer->SetCopies(copies);
  rig.Decide(/*max_norm=*/1);
  ASSERT_TRUE(rig.Update(1, 0.1).ok());
  int64_t last = 0;
  for (size_t p = 0; p < rig.outline.params.size(); ++p) {
    const int64_t first = rig.parameters->offset(static_cast<int64_t>(p));
    for (int64_t i = last; i < first; ++i) ASSERT_EQ(rig.parameters->weights()[i], 0.0f);
    last = first + rig.outline.params[p].elements();
  }
}

}  // namespace
}  // namespace nibble
