// The MLP: '-'.
#include <cstdint>

#include "absl/status/status.h"
#include "model/field_check.h"
#include "model/mixers.h"

namespace nibble {
namespace {

// SwiGLU's up-projection yields gate | up.
int64_t UpWidth(const ModelSpec& spec) {
  return spec.activation == Activation::kSwiglu ? 2 * spec.d_ff : spec.d_ff;
}

absl::Status ValidateMlp(const ModelSpec& spec) { return CheckSize("d_ff", spec.d_ff, kMaxWidth); }

void AddMlp(const ModelSpec& spec, BlockOutline& block) {
  block.AddLinear("up", spec.d_model, UpWidth(spec), LinearEnd::kInside);
  block.AddLinear("down", spec.d_ff, spec.d_model, LinearEnd::kResidual);
}

void AddMlpFlops(const ModelSpec&, int64_t, FlopsPerToken&) {}  // all in its linears

// The activation's input and output, which is the down-projection's input, and their gradients.
MixerTensors MlpTensors(const ModelSpec& spec) {
  const int64_t up = 2 * UpWidth(spec), active = 2 * spec.d_ff;
  return {.saved = {up}, .backward = {up, active}, .last_input = active};
}

}  // namespace

extern const MixerKind kMlpMixer;
constexpr MixerKind kMlpMixer = {
    .symbol = '-',
    .name = "mlp",
    .validate = ValidateMlp,
    .add = AddMlp,
    .add_flops = AddMlpFlops,
    .tensors = MlpTensors,
};

}  // namespace nibble
