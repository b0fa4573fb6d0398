// Weights of linears in NVFP4 as inference engines read them, made by the quantiser that training's
// Fprop uses, from the same FP32 weights: the codes and block scales are training's to the bit.
//
// Ownership: borrows the source; owns the codes and scales of one parameter at a time.
// Thread-safety: none.
#ifndef NIBBLE_WORKER_INTEROP_NVFP4_WEIGHTS_H_
#define NIBBLE_WORKER_INTEROP_NVFP4_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/ops/backend.h"
#include "kernels/tensor/quantized_tensor.h"
#include "model/outline.h"
#include "recipe/recipe.h"
#include "worker/weights/weight_source.h"

namespace nibble {

// One per linear of the outline: how its weight is quantised in Fprop, or nothing where it stays in
// high precision.
//
// InvalidArgument where the recipe is of another model. FailedPrecondition naming the layer for
// what the files cannot say (another format, stochastic rounding, a transform), and where no layer
// is quantised.
absl::StatusOr<std::vector<OperandFormat>> Nvfp4Layers(const ResolvedRecipe& recipe,
                                                       const Outline& outline);

class Nvfp4Weights {
 public:
  // `threads`: 0 for every processor.
  static absl::StatusOr<std::unique_ptr<Nvfp4Weights>> Create(WeightSource& source, int threads);

  // Makes `param`, the weight of a linear, the present one; nothing to do where it is. Values that
  // are not finite are FailedPrecondition with their number.
  absl::Status Quantise(int64_t param, const OperandSpec& spec);

  // Of the present parameter, [out, in].
  float amax() const { return amax_; }
  // S_enc: what block scales are larger than the weights' by. A weight is code · scale / it.
  float global_scale() const;
  // [rows, in/2] codes, two to a byte, even element low.
  absl::Span<const std::byte> Codes(int64_t first_row, int64_t rows) const;
  // One row's [in/16] scales in E4M3. Rows of one 16×16 block have the same.
  absl::Span<const std::byte> Scales(int64_t row) const;

 private:
  Nvfp4Weights(WeightSource& source, std::unique_ptr<Backend> backend)
      : source_(source), backend_(std::move(backend)) {}

  WeightSource& source_;
  std::unique_ptr<Backend> backend_;
  int64_t param_ = -1;
  QuantizedTensor tensor_;
  float amax_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_NVFP4_WEIGHTS_H_
