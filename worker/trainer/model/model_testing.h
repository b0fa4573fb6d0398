// A whole model on the CPU, for tests: device, parameters and one random micro-batch.
//
// Ownership: a TestRig owns everything. Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_MODEL_TESTING_H_
#define NIBBLE_WORKER_TRAINER_MODEL_MODEL_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/layers/cpu_layer_ops.h"
#include "kernels/gemm/cpu_gemm.h"
#include "worker/trainer/model/model.h"

namespace nibble {

inline void PrintTo(const ModelSpec& spec, std::ostream* out) { *out << spec.name; }

struct TestDevice {
  explicit TestDevice(int threads, size_t memory_bytes = 0, std::function<double()> clock = {})
      : backend(*CpuBackend::Create(
            {.threads = threads, .memory_bytes = memory_bytes, .clock = std::move(clock)})),
        gemm(*CpuGemm::Create(backend->pool(), {})),
        ops(std::make_unique<CpuLayerOps>(backend->pool())) {}

  Device device() { return {*backend, *gemm, *ops}; }

  std::unique_ptr<CpuBackend> backend;
  std::unique_ptr<CpuGemm> gemm;
  std::unique_ptr<CpuLayerOps> ops;
};

// Small enough to differentiate by hand, with every kind of mixer.
inline ModelSpec HybridSpec() {
  return {.name = "hybrid",
          .pattern = "M-*-",
          .vocab = 48,
          .d_model = 32,
          .d_ff = 64,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 16,
          .mamba_heads = 4,
          .mamba_head_dim = 16,
          .mamba_groups = 2,
          .mamba_state = 14,
          .chunk = 16,
          .init_std = 0.2};
}
inline ModelSpec LlamaSpec() {
  ModelSpec spec = HybridSpec();
  spec.name = "llama";
  spec.pattern = "*-*-";
  spec.positions = Positions::kRope;
  spec.activation = Activation::kSwiglu;
  return spec;
}
inline ModelSpec Gpt2Spec() {
  ModelSpec spec = HybridSpec();
  spec.name = "gpt2";
  spec.pattern = "*-*-";
  spec.norm = NormKind::kLayerNorm;
  spec.positions = Positions::kLearned;
  spec.max_positions = 64;
  spec.biases = true;
  spec.tied_head = true;
  spec.kv_heads = 4;
  spec.activation = Activation::kGelu;
  return spec;
}

inline ResolvedRecipe ResolvedPreset(const Outline& outline, const std::string& preset,
                                     std::vector<FieldSetting> set = {}) {
  absl::StatusOr<ResolvedRecipe> recipe =
      Resolve({.preset = preset, .set = std::move(set)}, outline, 0);
  EXPECT_TRUE(recipe.ok()) << recipe.status();
  return *recipe;
}

// Tokens, targets and documents of `sequences` × `length`.
struct TestBatch {
  TestBatch(int64_t sequences, int64_t length, int64_t vocab, uint64_t seed, bool documents = true)
      : layout({.sequences = sequences, .length = length}) {
    std::mt19937_64 random(seed);
    for (int64_t s = 0; s < sequences; ++s) {
      int32_t begin = 0;
      for (int64_t i = 0; i < length; ++i) {
        if (documents && i > 0 && random() % 11 == 0) begin = static_cast<int32_t>(i);
        doc_begin.push_back(begin);
        tokens.push_back(static_cast<int32_t>(random() % vocab));
        targets.push_back(random() % 13 == 0 ? -1 : static_cast<int32_t>(random() % vocab));
      }
    }
    layout.doc_begin = doc_begin.data();
  }
  TestBatch(const TestBatch&) = delete;

  ModelBatch view() const { return {.tokens = tokens.data(), .targets = targets.data()}; }
  // As the only micro-batch of a step.
  StepContext context(uint64_t seed = 7, int64_t step = 3) const {
    return {.seed = seed, .step = step, .layout = layout, .batch_tokens = layout.tokens()};
  }

  SequenceLayout layout;
  std::vector<int32_t> tokens, targets, doc_begin;
};

struct TestRig {
  TestRig(const ModelSpec& spec, const std::string& preset, Model::Options options, int threads = 2,
          std::vector<FieldSetting> set = {})
      : device(threads), outline(*MakeOutline(spec)) {
    parameters = *Parameters::Create(device.device(), outline, /*seed=*/11);
    absl::StatusOr<std::unique_ptr<Model>> made = Model::Create(
        device.device(), *parameters, ResolvedPreset(outline, preset, std::move(set)), options);
    EXPECT_TRUE(made.ok()) << made.status();
    model = *std::move(made);
  }

  // One step of one micro-batch; the sum of its losses.
  double Step(const TestBatch& batch, const StepContext& context) {
    std::vector<float> loss(batch.tokens.size());
    absl::Status status = model->BeginStep(context);
    EXPECT_TRUE(status.ok()) << status;
    status = model->Forward(context, batch.view(), 1.0f, loss.data());
    EXPECT_TRUE(status.ok()) << status;
    status = model->Backward(context, batch.view());
    EXPECT_TRUE(status.ok()) << status;
    return Sum(loss);
  }
  double Loss(const TestBatch& batch) {
    std::vector<float> loss(batch.tokens.size());
    const StepContext context = batch.context();
    absl::Status status = model->BeginStep(context);
    EXPECT_TRUE(status.ok()) << status;
    status = model->Evaluate(context, batch.view(), loss.data());
    EXPECT_TRUE(status.ok()) << status;
    return Sum(loss);
  }
  static double Sum(const std::vector<float>& loss) {
    double sum = 0;
    for (const float x : loss) sum += x;
    return sum;
  }
  std::vector<float> Gradients() const {
    const float* g = parameters->gradients();
    return {g, g + parameters->elements()};
  }

  TestDevice device;
  Outline outline;
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<Model> model;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_MODEL_TESTING_H_
