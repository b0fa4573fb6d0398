#include "worker/interop/nvfp4_weights.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/formats/scaling.h"

namespace nibble {

absl::StatusOr<std::vector<OperandFormat>> Nvfp4Layers(const ResolvedRecipe& recipe,
                                                       const Outline& outline) {
  if (recipe.layers.size() != outline.linears.size()) {
    return absl::InvalidArgumentError(absl::StrCat("recipe: it has ", recipe.layers.size(),
                                                   " layers, and model ", outline.spec.name,
                                                   " has ", outline.linears.size()));
  }
  std::vector<OperandFormat> formats;
  bool any = false;
  for (size_t i = 0; i < recipe.layers.size(); ++i) {
    const OperandFormat& format = recipe.layers[i][OperandRole::kFpropWeight];
    formats.push_back(format);
    if (!format.has_value()) continue;
    any = true;
    // Blocks are 1×16 or 16×16; either way groups of 16 have one scale.
    if (format->format == Format::kNvfp4 && format->rounding == Rounding::kNearest &&
        format->hadamard.size == 0) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        outline.linears[i].name, ": fprop.weight is ", format->Name(),
        "; quantised weights are written in nvfp4, rounded to nearest, without a transform"));
  }
  if (!any) {
    return absl::FailedPreconditionError(
        "recipe: every layer's fprop.weight is bf16, so there is nothing to quantise");
  }
  return formats;
}

absl::StatusOr<std::unique_ptr<Nvfp4Weights>> Nvfp4Weights::Create(WeightSource& source,
                                                                   int threads) {
  absl::StatusOr<std::unique_ptr<CpuBackend>> backend = CpuBackend::Create({.threads = threads});
  if (!backend.ok()) return backend.status();
  return std::unique_ptr<Nvfp4Weights>(new Nvfp4Weights(source, *std::move(backend)));
}

absl::Status Nvfp4Weights::Quantise(int64_t param, const OperandSpec& spec) {
  if (param == param_ && spec == tensor_.spec()) return absl::OkStatus();
  param_ = -1;
  tensor_ = QuantizedTensor();  // before the next one is allocated
  const ParamInfo& info = source_.outline().params[static_cast<size_t>(param)];
  const int64_t out = info.shape[0];
  const int64_t in = info.shape[1];
  std::vector<float> weight(static_cast<size_t>(info.elements()));
  absl::Status status = source_.Read(info, absl::MakeSpan(weight));
  if (!status.ok()) return status;
  absl::StatusOr<QuantizedTensor> tensor =
      QuantizedTensor::Create(backend_->memory(), {.spec = spec, .rows = out, .cols = in});
  if (!tensor.ok()) {
    return absl::Status(tensor.status().code(),
                        absl::StrCat(info.name, ": ", tensor.status().message()));
  }
  status =
      backend_->Quantize({.x = ConstMatrix::Of(weight.data(), out, in), .row = {.out = &*tensor}});
  if (!status.ok()) return status;
  const absl::StatusOr<QuantHead> head = backend_->ReadHead(*tensor);
  if (!head.ok()) return head.status();
  if (head->non_finite != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(info.name, ": ", head->non_finite, " of its values are not finite"));
  }
  amax_ = head->amax;
  tensor_ = *std::move(tensor);
  param_ = param;
  return absl::OkStatus();
}

float Nvfp4Weights::global_scale() const {
  return Nvfp4::ForTensor(amax_, /*divide_first=*/false).encode;
}

absl::Span<const std::byte> Nvfp4Weights::Codes(int64_t first_row, int64_t rows) const {
  const int64_t row_bytes = tensor_.code_row_bytes();
  return {reinterpret_cast<const std::byte*>(tensor_.codes() + first_row * row_bytes),
          static_cast<size_t>(rows * row_bytes)};
}

absl::Span<const std::byte> Nvfp4Weights::Scales(int64_t row) const {
  const int64_t groups = tensor_.scale_cols();
  const auto* scales = static_cast<const std::byte*>(tensor_.scales());
  return {scales + row / tensor_.block_rows() * groups, static_cast<size_t>(groups)};
}

}  // namespace nibble
