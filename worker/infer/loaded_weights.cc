#include "worker/infer/loaded_weights.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/cpu/layers/scratch.h"

namespace nibble {
namespace {

// Linears, and the tables at both ends; a convolution's taps are a vector per channel.
bool IsMatrix(const ParamInfo& param) {
  return param.linear >= 0 || (param.block < 0 && param.shape.size() == 2);
}

}  // namespace

absl::StatusOr<LoadedWeights> LoadedWeights::Load(WeightSource& source, DType precision,
                                                  DecodeDevice& device) {
  LoadedWeights weights;
  weights.outline_ = source.outline();
  weights.precision_ = precision;
  cpu::Scratch<float> staging;
  for (const ParamInfo& param : weights.outline_.params) {
    const int64_t n = param.elements();
    const bool rounded = precision == DType::kBf16 && IsMatrix(param);
    const int64_t bytes = n * (rounded ? 2 : 4);
    absl::StatusOr<Buffer> buffer = device.memory.Allocate(static_cast<size_t>(bytes));
    if (!buffer.ok()) {
      return absl::Status(buffer.status().code(),
                          absl::StrCat(param.name, ": ", buffer.status().message()));
    }
    float* values = rounded ? staging.Get(n) : buffer->data<float>();
    absl::Status status = source.Read(param, absl::MakeSpan(values, static_cast<size_t>(n)));
    if (status.ok() && rounded) {
      const int64_t rows = param.shape[0], cols = n / rows;
      status = device.ops.elementwise().Run(
          Cast{.from = ConstMatrix::Of(values, rows, cols),
               .to = MutableMatrix::OfBf16(buffer->data<uint16_t>(), rows, cols)});
    }
    if (!status.ok()) return status;
    weights.bytes_ += bytes;
    weights.buffers_.push_back(*std::move(buffer));
  }
  return weights;
}

ConstMatrix LoadedWeights::matrix(int64_t param) const {
  const auto i = static_cast<size_t>(param);
  const int64_t rows = outline_.params[i].shape[0], cols = outline_.params[i].elements() / rows;
  return {buffers_[i].data(), precision_, rows, cols, cols};
}

const float* LoadedWeights::vector(int64_t param) const {
  return buffers_[static_cast<size_t>(param)].data<float>();
}

absl::StatusOr<const float*> LoadedWeights::FindVector(std::string_view name) const {
  const absl::StatusOr<int64_t> param = outline_.Find(name);
  if (!param.ok()) return absl::InternalError(param.status().message());
  return vector(*param);
}

absl::StatusOr<ConstMatrix> LoadedWeights::FindMatrix(std::string_view name) const {
  const absl::StatusOr<int64_t> param = outline_.Find(name);
  if (!param.ok()) return absl::InternalError(param.status().message());
  return matrix(*param);
}

}  // namespace nibble
