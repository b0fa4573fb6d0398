// Shared by the tests of import and export: a source of random weights, small models of each class,
// a temporary directory.
//
// Ownership: each object owns its own. Thread-safety: none.
#ifndef NIBBLE_WORKER_INTEROP_INTEROP_TESTING_H_
#define NIBBLE_WORKER_INTEROP_INTEROP_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/files/files_testing.h"
#include "model/outline.h"
#include "worker/weights/weight_source.h"

namespace nibble {

// Random values, also for parameters that start at one or zero, where a mistake would not show. A
// function of (seed, parameter's name).
inline std::vector<float> RandomValues(const ParamInfo& param, uint64_t seed) {
  std::mt19937_64 random(seed ^ std::hash<std::string>()(param.name));
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53;
  };
  std::vector<float> values(static_cast<size_t>(param.elements()));
  for (float& value : values) {
    double x = 0;
    switch (param.init) {
      case Init::kOnes:
        x = uniform(0.6, 1.4);
        break;
      case Init::kMambaDt:
        x = uniform(-10.5, -1.0);
        break;
      case Init::kMambaDecay:
        x = std::log(uniform(1, 16));
        break;
      default:
        x = uniform(-0.35, 0.35);
    }
    value = static_cast<float>(x);
  }
  return values;
}

class RandomWeights : public WeightSource {
 public:
  RandomWeights(const ModelSpec& spec, uint64_t seed,
                std::shared_ptr<const Tokenizer> tokenizer = nullptr)
      : outline_(*MakeOutline(spec)), seed_(seed), tokenizer_(std::move(tokenizer)) {}

  std::string description() const override { return "random weights"; }
  const Outline& outline() const override { return outline_; }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return tokenizer_; }
  absl::Status Read(const ParamInfo& param, absl::Span<float> out) override {
    const std::vector<float> values = RandomValues(param, seed_);
    std::copy(values.begin(), values.end(), out.begin());
    ++reads;
    return absl::OkStatus();
  }

  int reads = 0;

 private:
  const Outline outline_;
  const uint64_t seed_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
};

// One small model for each Hugging Face class, named as its model_type. Every dimension of a linear
// is a multiple of 16, as NVFP4 needs; inputs of all but gpt2 are multiples of 32.
inline std::vector<ModelSpec> ClassSpecs() {
  const ModelSpec hybrid = {.name = "nemotron_h",
                            .pattern = "M-*-M",
                            .vocab = 96,
                            .d_model = 32,
                            .d_ff = 64,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 8,
                            .mamba_heads = 16,
                            .mamba_head_dim = 4,
                            .mamba_groups = 2,
                            .mamba_state = 8,
                            .chunk = 8,
                            .scale_output_init = true};
  ModelSpec llama = {.name = "llama",
                     .pattern = "*-*-",
                     .vocab = 96,
                     .d_model = 32,
                     .norm_eps = 1e-6,
                     .positions = Positions::kRope,
                     .rope_theta = 500,
                     .d_ff = 64,
                     .activation = Activation::kSwiglu,
                     .heads = 4,
                     .kv_heads = 2,
                     .head_dim = 16};
  ModelSpec arcee = llama;
  arcee.name = "arcee";
  arcee.activation = Activation::kSquaredRelu;
  arcee.biases = true;
  arcee.tied_head = true;
  const ModelSpec gpt2 = {.name = "gpt2",
                          .pattern = "*-*-",
                          .vocab = 96,
                          .d_model = 32,
                          .norm = NormKind::kLayerNorm,
                          .positions = Positions::kLearned,
                          .max_positions = 40,
                          .biases = true,
                          .tied_head = true,
                          .d_ff = 80,
                          .activation = Activation::kGelu,
                          .heads = 4,
                          .kv_heads = 4,
                          .head_dim = 8};
  return {hybrid, llama, arcee, gpt2};
}
inline ModelSpec ClassSpec(std::string_view model_type) {
  for (const ModelSpec& spec : ClassSpecs()) {
    if (spec.name == model_type) return spec;
  }
  std::abort();
}

class ScratchDirectory : public file_testing::TempDirectory {
 public:
  std::string operator/(std::string_view name) const { return Path(std::string(name)); }
};

inline std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void WriteText(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}
// The names in a directory, ordered.
inline std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_INTEROP_TESTING_H_
