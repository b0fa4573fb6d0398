#include "worker/trainer/model/mixer.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {

// Each in the file of its name in mixers/.
MixerFactory MakeAttentionMixer, MakeMamba2Mixer, MakeMlpMixer;

namespace {

struct Entry {
  char symbol;
  MixerFactory* make;
};

constexpr Entry kMixers[] = {
    {'M', MakeMamba2Mixer},
    {'*', MakeAttentionMixer},
    {'-', MakeMlpMixer},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> MakeMixer(const Device& device,
                                                 const ParameterView& parameters, int64_t block,
                                                 DType dtype) {
  const char symbol = parameters.outline().spec.pattern[block];
  for (const Entry& entry : kMixers) {
    if (entry.symbol == symbol) return entry.make(device, parameters, block, dtype);
  }
  return absl::InternalError(
      absl::StrCat("block ", block, ": no mixer for '", std::string(1, symbol), "'"));
}

absl::StatusOr<Linear> FindLinear(const Device& device, const ParameterView& parameters,
                                  int64_t block, const std::string& kind, DType dtype) {
  const std::vector<LinearInfo>& linears = parameters.outline().linears;
  for (size_t i = 0; i < linears.size(); ++i) {
    if (linears[i].block != block || linears[i].kind != kind) continue;
    return Linear(device, parameters, static_cast<int64_t>(i), dtype);
  }
  return absl::InternalError(absl::StrCat("the outline has no ", kind, " in block ", block));
}

absl::StatusOr<int64_t> FindBlockParam(const Outline& outline, int64_t block,
                                       const std::string& name) {
  return outline.Find(absl::StrCat("blocks.", block, ".", name));
}

absl::StatusOr<NormLayer> FindNorm(const ParameterView& parameters, const std::string& prefix) {
  const Outline& outline = parameters.outline();
  NIBBLE_ASSIGN_OR_RETURN(const int64_t weight, outline.Find(absl::StrCat(prefix, ".weight")));
  NormLayer norm = {.params = {.centered = outline.spec.norm == NormKind::kLayerNorm,
                               .eps = static_cast<float>(outline.spec.norm_eps),
                               .weight = parameters.weight(weight)},
                    .dweight = parameters.gradient(weight)};
  if (!norm.params.centered) return norm;
  NIBBLE_ASSIGN_OR_RETURN(const int64_t bias, outline.Find(absl::StrCat(prefix, ".bias")));
  norm.params.bias = parameters.weight(bias);
  norm.dbias = parameters.gradient(bias);
  return norm;
}

}  // namespace nibble
