#include "worker/trainer/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "common/bytes.h"
#include "common/status_macros.h"
#include "kernels/formats/philox.h"

namespace nibble {
namespace {

// In (0, 1): never 0, so that its logarithm is finite.
double Uniform(uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

// Separates these draws from those of rounding, whose step counts from 0.
constexpr uint32_t kInitStep = 0xffffffffu;

}  // namespace

void InitialValues(const ParamInfo& param, uint64_t seed, float* out) {
  const int64_t n = param.elements();
  if (param.init == Init::kZeros || param.init == Init::kOnes) {
    std::fill(out, out + n, param.init == Init::kOnes ? 1.0f : 0.0f);
    return;
  }
  const RandomStream random = {.seed = seed, .stream = Fnv1a32(param.name), .step = kInitStep};
  for (int64_t first = 0; first < n; first += 4) {
    const uint64_t block = static_cast<uint64_t>(first) / 4;
    const PhiloxWords<uint32_t> bits = RoundingBits<uint32_t>(random, static_cast<uint32_t>(block),
                                                              static_cast<uint32_t>(block >> 32));
    double value[4];
    for (int i = 0; i < 4; ++i) value[i] = Uniform(bits.word[i]);
    switch (param.init) {
      case Init::kNormal:
        for (int i = 0; i < 4; i += 2) {
          const double radius = param.scale * std::sqrt(-2.0 * std::log(value[i]));
          const double angle = 2.0 * std::numbers::pi * value[i + 1];
          value[i] = radius * std::cos(angle);
          value[i + 1] = radius * std::sin(angle);
        }
        break;
      case Init::kUniform:
        for (double& v : value) v = param.scale * (2.0 * v - 1.0);
        break;
      case Init::kMambaDt:
        for (double& v : value) {
          const double low = std::log(1e-3);
          const double dt = std::max(1e-4, std::exp(low + v * (std::log(0.1) - low)));
          v = dt + std::log(-std::expm1(-dt));  // softplus⁻¹
        }
        break;
      case Init::kMambaDecay:
        for (double& v : value) v = std::log(1.0 + 15.0 * v);
        break;
      case Init::kZeros:
      case Init::kOnes:
        break;
    }
    for (int i = 0; i < 4 && first + i < n; ++i) out[first + i] = static_cast<float>(value[i]);
  }
}

absl::StatusOr<std::unique_ptr<Parameters>> Parameters::Create(Memory& memory,
                                                               const Outline& outline,
                                                               uint64_t seed, int world) {
  std::unique_ptr<Parameters> result(new Parameters);
  result->outline_ = outline;
  int64_t largest = 0;
  for (const ParamInfo& param : outline.params) {
    result->offsets_.push_back(result->elements_);
    const int64_t padded =
        (param.elements() + kParameterAlign - 1) / kParameterAlign * kParameterAlign;
    result->elements_ += padded;
    largest = std::max(largest, padded);
  }
  const int64_t part = kParameterAlign * world;
  const int64_t gap = (part - result->elements_ % part) % part;
  result->elements_ += gap;
  largest += gap;
  const size_t bytes = static_cast<size_t>(result->elements_) * sizeof(float);
  for (Buffer* buffer : {&result->weights_, &result->gradients_}) {
    NIBBLE_ASSIGN_OR_RETURN(Buffer allocated, memory.Allocate(bytes));
    *buffer = std::move(allocated);
  }
  std::vector<float> staged(largest);
  for (size_t i = 0; i < outline.params.size(); ++i) {
    const ParamInfo& param = outline.params[i];
    const int64_t end = i + 1 < outline.params.size() ? result->offsets_[i + 1] : result->elements_;
    const int64_t padded = end - result->offsets_[i];
    const size_t piece = static_cast<size_t>(padded) * sizeof(float);
    std::fill(staged.begin(), staged.begin() + padded, 0.0f);
    absl::Status status =
        memory.CopyIn(result->gradient(static_cast<int64_t>(i)), staged.data(), piece);
    InitialValues(param, seed, staged.data());
    if (status.ok()) {
      status = memory.CopyIn(result->weight(static_cast<int64_t>(i)), staged.data(), piece);
    }
    if (!status.ok()) return status;
  }
  return result;
}

ConstMatrix Parameters::matrix(int64_t param) const {
  const ParamInfo& info = outline_.params[param];
  return ConstMatrix::Of(weight(param), info.shape[0], info.elements() / info.shape[0]);
}

}  // namespace nibble
