// Random weights for tests, in memory. Parameters that start at zero or one are random too, so that
// a missing bias or norm shows.
//
// Ownership: a TestWeights owns its values. Thread-safety: none.
#ifndef NIBBLE_WORKER_INFER_INFER_TESTING_H_
#define NIBBLE_WORKER_INFER_INFER_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "gtest/gtest.h"
#include "kernels/cpu/layers/cpu_elementwise_ops.h"
#include "model/model_spec.h"
#include "model/outline.h"
#include "worker/infer/decoder.h"
#include "worker/trainer/data/tokenizer.h"
#include "worker/trainer/model/parameters.h"
#include "worker/weights/weight_source.h"

namespace nibble {

inline std::vector<float> InitialOf(const ParamInfo& param, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(param.elements()));
  ThreadPool pool(1);
  const absl::Status made = CpuElementwiseOps(pool).Run(InitialValues(param, seed, values.data()));
  EXPECT_TRUE(made.ok()) << made;
  return values;
}

// Numbers of N(0, 1), the same on every machine.
inline std::vector<float> Normal(uint64_t seed, int64_t numbers) {
  return InitialOf({.name = "test", .shape = {numbers}, .init = Init::kNormal, .scale = 1}, seed);
}

class TestWeights : public WeightSource {
 public:
  explicit TestWeights(const ModelSpec& spec, uint64_t seed = 5, double matrix_scale = 4)
      : outline_(*MakeOutline(spec)), tokenizer_(std::make_shared<ByteTokenizer>()) {
    for (const ParamInfo& param : outline_.params) {
      std::vector<float>& values = values_.emplace_back(InitialOf(param, seed));
      const std::vector<float> noise = Normal(seed + values_.size(), param.elements());
      const bool constant = param.init == Init::kZeros || param.init == Init::kOnes;
      for (size_t i = 0; i < values.size(); ++i) {
        // Larger than at initialisation, so that logits differ as a trained model's do.
        if (param.init == Init::kNormal) values[i] *= static_cast<float>(matrix_scale);
        if (constant) values[i] += 0.2f * noise[i];
      }
    }
  }

  std::string description() const override { return "test weights of " + outline_.spec.name; }
  const Outline& outline() const override { return outline_; }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return tokenizer_; }
  absl::Status Read(const ParamInfo& param, absl::Span<float> out) override {
    NIBBLE_ASSIGN_OR_RETURN(const int64_t index, outline_.Find(param.name));
    if (param.name == damaged_) return absl::DataLossError("the bytes of " + damaged_);
    std::copy(values_[index].begin(), values_[index].end(), out.begin());
    return absl::OkStatus();
  }

  // By index in the outline.
  const std::vector<float>& values(int64_t param) const { return values_[param]; }
  std::vector<float>& values(const std::string& name) { return values_[*outline_.Find(name)]; }
  void Damage(std::string param) { damaged_ = std::move(param); }
  void ForgetTokenizer() { tokenizer_ = nullptr; }
  std::optional<int64_t> trained_sequence() const override { return trained_sequence_; }
  void SetTrainedSequence(int64_t tokens) { trained_sequence_ = tokens; }

 private:
  Outline outline_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::vector<float>> values_;
  std::string damaged_;
  std::optional<int64_t> trained_sequence_;
};

inline std::vector<int32_t> RandomTokens(uint32_t seed, int64_t count, int64_t vocab) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
  return tokens;
}

inline std::unique_ptr<Decoder> MustCreate(WeightSource& source, const DecoderOptions& options) {
  absl::StatusOr<std::unique_ptr<Decoder>> decoder = Decoder::Create(source, options);
  EXPECT_TRUE(decoder.ok()) << decoder.status();
  return decoder.ok() ? *std::move(decoder) : nullptr;
}

// The largest |a − b| over the largest |b|; 1 where one is not finite.
// Runs tokens of one sequence; the logits after each: [tokens.size(), vocab].
inline std::vector<float> AllLogits(Decoder& decoder, SequenceState& sequence,
                                    absl::Span<const int32_t> tokens) {
  std::vector<float> logits;
  const Decoder::Piece piece = {&sequence, tokens};
  const absl::Status status =
      decoder.Run({&piece, 1}, Decoder::Wanted::kAll,
                  [&](absl::Span<const Decoder::Place> places, const float* rows) {
                    logits.insert(logits.end(), rows,
                                  rows + places.size() * static_cast<size_t>(decoder.vocab()));
                    return absl::OkStatus();
                  });
  EXPECT_TRUE(status.ok()) << status;
  return logits;
}

inline double RelativeError(absl::Span<const float> a, absl::Span<const float> b) {
  double difference = 0, size = 0;
  if (a.size() != b.size()) return 1;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return 1;
    difference = std::max<double>(difference, std::abs(double{a[i]} - b[i]));
    size = std::max<double>(size, std::abs(b[i]));
  }
  return size > 0 ? difference / size : difference;
}

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_INFER_TESTING_H_
