#include "worker/infer/loaded_weights.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

// Linears, embedding, positions and head; a convolution's taps are a vector per channel.
bool IsMatrix(const ParamInfo& param) {
  return param.linear >= 0 || (param.block < 0 && param.shape.size() == 2);
}

}  // namespace

absl::StatusOr<LoadedWeights> LoadedWeights::Load(WeightSource& source, DType precision,
                                                  const Device& device) {
  LoadedWeights weights;
  weights.outline_ = source.outline();
  weights.precision_ = precision;
  std::vector<float> staging;  // on the host
  Buffer unrounded;            // of the largest matrix so far
  Memory& memory = device.memory();
  for (const ParamInfo& param : weights.outline_.params) {
    const int64_t n = param.elements();
    const bool rounded = precision == DType::kBf16 && IsMatrix(param);
    const int64_t bytes = n * (rounded ? 2 : 4);
    absl::StatusOr<Buffer> buffer = memory.Allocate(static_cast<size_t>(bytes));
    if (!buffer.ok()) {
      return absl::Status(buffer.status().code(),
                          absl::StrCat(param.name, ": ", buffer.status().message()));
    }
    staging.resize(static_cast<size_t>(n));
    const size_t staged_bytes = staging.size() * sizeof(float);
    NIBBLE_RETURN_IF_ERROR(source.Read(param, absl::MakeSpan(staging)));
    if (rounded) {
      if (unrounded.bytes() < staged_bytes) {
        { const Buffer freed = std::move(unrounded); }
        NIBBLE_ASSIGN_OR_RETURN(unrounded, memory.Allocate(staged_bytes));
      }
      NIBBLE_RETURN_IF_ERROR(memory.CopyIn(unrounded.data(), staging.data(), staged_bytes));
      const int64_t rows = param.shape[0], cols = n / rows;
      NIBBLE_RETURN_IF_ERROR(device.ops.elementwise().Run(
          Cast{.from = ConstMatrix::Of(unrounded.data<float>(), rows, cols),
               .to = MutableMatrix::OfBf16(buffer->data<uint16_t>(), rows, cols)}));
    } else {
      NIBBLE_RETURN_IF_ERROR(memory.CopyIn(buffer->data(), staging.data(), staged_bytes));
    }
    weights.bytes_ += bytes;
    weights.buffers_.push_back(*std::move(buffer));
  }
  NIBBLE_RETURN_IF_ERROR(device.backend.Synchronize());
  return weights;
}

ConstMatrix LoadedWeights::matrix(int64_t param) const {
  const ParamInfo& info = outline_.params[static_cast<size_t>(param)];
  const int64_t rows = info.shape[0], cols = info.elements() / rows;
  const DType dtype = IsMatrix(info) ? precision_ : DType::kF32;
  return {buffers_[static_cast<size_t>(param)].data(), dtype, rows, cols, cols};
}

}  // namespace nibble
