// Mamba-2: 'M'. in_proj gives z | x B C | dt; a causal convolution over xBC; the scan; a norm per
// group of y gated by z; out_proj.
#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "model/field_check.h"
#include "model/mixers.h"

namespace nibble {
namespace {

int64_t InProjWidth(const ModelSpec& spec) {
  return spec.d_inner() + spec.conv_dim() + spec.mamba_heads;
}

absl::Status ValidateMamba(const ModelSpec& spec) {
  NIBBLE_RETURN_IF_ERROR(CheckSize("mamba_heads", spec.mamba_heads, kMaxWidth));
  NIBBLE_RETURN_IF_ERROR(CheckSize("mamba_head_dim", spec.mamba_head_dim, kMaxWidth));
  NIBBLE_RETURN_IF_ERROR(CheckSize("mamba_groups", spec.mamba_groups, kMaxWidth));
  NIBBLE_RETURN_IF_ERROR(CheckSize("mamba_state", spec.mamba_state, kMaxWidth));
  NIBBLE_RETURN_IF_ERROR(CheckSize("conv_width", spec.conv_width, kMaxConvWidth));
  NIBBLE_RETURN_IF_ERROR(CheckSize("chunk", spec.chunk, kMaxScanChunk));
  NIBBLE_RETURN_IF_ERROR(
      CheckDivides("mamba_groups", spec.mamba_groups, "mamba_heads", spec.mamba_heads));
  NIBBLE_RETURN_IF_ERROR(
      CheckWidth("mamba_heads", spec.mamba_heads, "mamba_head_dim", spec.mamba_head_dim));
  return CheckWidth("mamba_groups", spec.mamba_groups, "mamba_state", spec.mamba_state);
}

void AddMamba(const ModelSpec& spec, BlockOutline& block) {
  block.AddLinear("in_proj", spec.d_model, InProjWidth(spec), LinearEnd::kInside);
  block.AddParam("conv.weight", {spec.conv_dim(), spec.conv_width}, Init::kUniform,
                 1 / std::sqrt(static_cast<double>(spec.conv_width)));
  block.AddParam("conv.bias", {spec.conv_dim()}, Init::kZeros);
  block.AddParam("dt_bias", {spec.mamba_heads}, Init::kMambaDt);
  block.AddParam("A_log", {spec.mamba_heads}, Init::kMambaDecay);
  block.AddParam("D", {spec.mamba_heads}, Init::kOnes);
  block.AddParam("norm.weight", {spec.d_inner()}, Init::kOnes);
  block.AddLinear("out_proj", spec.d_inner(), spec.d_model, LinearEnd::kResidual);
}

// The number of tokens of its chunk up to and including itself that a token depends on, on average.
// The last chunk may be short.
double SeenInChunk(int64_t sequence, int64_t chunk) {
  const double full = static_cast<double>(sequence / chunk);
  const double rest = static_cast<double>(sequence % chunk);
  const double size = static_cast<double>(chunk);
  return (full * size * (size + 1) / 2 + rest * (rest + 1) / 2) / static_cast<double>(sequence);
}

// The scan in chunks of Q, with H heads of P, G groups, state N:
//   y_i = Σ_{j≤i} M_ij (C_i·B_j) u_j + exp(s_i) S C_i + D x_i
//   S′ = exp(s_Q) S + Σ_j exp(s_Q − s_j) u_j B_jᵀ
// Multiplications and their sums count; exponents, like attention's softmax, do not.
void AddMambaFlops(const ModelSpec& spec, int64_t sequence, FlopsPerToken& flops) {
  const double heads = static_cast<double>(spec.mamba_heads);
  const double head_dim = static_cast<double>(spec.mamba_head_dim);
  const double groups = static_cast<double>(spec.mamba_groups);
  const double state = static_cast<double>(spec.mamba_state);
  const double seen = SeenInChunk(sequence, spec.chunk);
  const double chunks = static_cast<double>((sequence - 1) / spec.chunk + 1);
  const double carried = heads * head_dim * state;  // numbers in S

  const double conv =
      2 * static_cast<double>(spec.conv_dim()) * static_cast<double>(spec.conv_width);
  const double scores = 2 * groups * state * seen;    // C_i·B_j
  const double inside = 2 * heads * head_dim * seen;  // Σ_j (…) u_j
  const double entering = 2 * carried;                // S C_i
  const double skip = 2 * heads * head_dim;           // + D x_i
  const double leaving = 2 * carried;                 // Σ_j (…) u_j B_jᵀ
  const double recurrence = 2 * carried * chunks / static_cast<double>(sequence);  // exp(s_Q) S + …
  flops.scan += conv + scores + inside + entering + skip + leaving + recurrence;
}

// in_proj's output (z, xBC before the convolution, dt), xBC after SiLU, the scan's y, the gated
// norm's 1/rms per group in FP32 and its output, which is out_proj's input; their gradients. The
// scan's intermediate results are recomputed.
MixerTensors MambaTensors(const ModelSpec& spec) {
  const int64_t projected = 2 * InProjWidth(spec), xbc = 2 * spec.conv_dim();
  const int64_t inner = 2 * spec.d_inner();
  return {.saved = {projected, xbc, inner, 4 * spec.mamba_groups},
          .backward = {projected, xbc, inner, inner},
          .last_input = inner};
}

}  // namespace

extern const MixerKind kMamba2Mixer;
constexpr MixerKind kMamba2Mixer = {
    .symbol = 'M',
    .name = "mamba",
    .validate = ValidateMamba,
    .add = AddMamba,
    .add_flops = AddMambaFlops,
    .tensors = MambaTensors,
};

}  // namespace nibble
