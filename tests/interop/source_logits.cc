#include "tests/interop/source_logits.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/layers/cpu_layer_ops.h"
#include "kernels/gemm/cpu_gemm.h"
#include "recipe/recipe.h"
#include "worker/trainer/model/model.h"

namespace nibble {

absl::StatusOr<std::vector<float>> SourceLogits(WeightSource& source,
                                                absl::Span<const int32_t> tokens) {
  const Outline& outline = source.outline();
  for (const int32_t token : tokens) {
    if (token >= 0 && token < outline.spec.vocab) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token ", token, " is not in [0, ", outline.spec.vocab, ")"));
  }
  const absl::StatusOr<std::unique_ptr<CpuBackend>> backend = CpuBackend::Create({.threads = 1});
  if (!backend.ok()) return backend.status();
  const absl::StatusOr<std::unique_ptr<CpuGemm>> gemm = CpuGemm::Create((*backend)->pool(), {});
  if (!gemm.ok()) return gemm.status();
  CpuLayerOps ops((*backend)->pool());
  const absl::StatusOr<std::unique_ptr<Parameters>> parameters =
      Parameters::Create({**backend, **gemm, ops}, outline, /*seed=*/0);
  if (!parameters.ok()) return parameters.status();
  for (size_t i = 0; i < outline.params.size(); ++i) {
    const ParamInfo& param = outline.params[i];
    const absl::Status status =
        source.Read(param, absl::MakeSpan((*parameters)->weight(static_cast<int64_t>(i)),
                                          static_cast<size_t>(param.elements())));
    if (!status.ok()) return status;
  }
  const absl::StatusOr<ResolvedRecipe> recipe = Resolve({.preset = "bf16"}, outline, 0);
  if (!recipe.ok()) return recipe.status();
  const auto length = static_cast<int64_t>(tokens.size());
  const absl::StatusOr<std::unique_ptr<Model>> model =
      Model::Create({**backend, **gemm, ops}, **parameters, *recipe,
                    {.activations = DType::kF32, .sequences = 1, .length = length});
  if (!model.ok()) return model.status();
  const StepContext context = {.layout = {.sequences = 1, .length = length},
                               .batch_tokens = length};
  std::vector<float> logits(static_cast<size_t>(length * outline.spec.vocab));
  absl::Status status = (*model)->BeginStep(context);
  if (status.ok()) {
    status = (*model)->Logits(context, {.tokens = tokens.data()},
                              MutableMatrix::Of(logits.data(), length, outline.spec.vocab));
  }
  if (status.ok()) status = (*backend)->Synchronize();
  if (!status.ok()) return status;
  return logits;
}

}  // namespace nibble
