// Causal grouped-query attention: '*'.
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/field_check.h"
#include "model/mixers.h"

namespace nibble {
namespace {

int64_t QueryWidth(const ModelSpec& spec) { return spec.heads * spec.head_dim; }
int64_t QkvWidth(const ModelSpec& spec) { return (spec.heads + 2 * spec.kv_heads) * spec.head_dim; }

absl::Status ValidateAttention(const ModelSpec& spec) {
  absl::Status status = CheckSize("heads", spec.heads, kMaxWidth);
  if (status.ok()) status = CheckSize("kv_heads", spec.kv_heads, kMaxWidth);
  if (status.ok()) status = CheckSize("head_dim", spec.head_dim, kMaxWidth);
  if (status.ok()) status = CheckDivides("kv_heads", spec.kv_heads, "heads", spec.heads);
  if (status.ok()) status = CheckWidth("heads", spec.heads, "head_dim", spec.head_dim);
  if (status.ok() && spec.positions == Positions::kRope && spec.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head_dim: ", spec.head_dim, " is odd; rope rotates pairs, so it must be even"));
  }
  return status;
}

void AddAttention(const ModelSpec& spec, BlockOutline& block) {
  block.AddLinear("qkv", spec.d_model, QkvWidth(spec), LinearEnd::kInside);
  block.AddLinear("out", QueryWidth(spec), spec.d_model, LinearEnd::kResidual);
}

// A token attends to itself and the tokens before it: (sequence + 1) / 2 keys on average, once in
// Q·Kᵀ and once in P·V.
void AddAttentionFlops(const ModelSpec& spec, int64_t sequence, FlopsPerToken& flops) {
  const double keys = (static_cast<double>(sequence) + 1) / 2;
  flops.attention += 2 * 2 * static_cast<double>(QueryWidth(spec)) * keys;
}

// q | k | v after RoPE, the attention output, and a log-sum-exp per head in FP32; the probabilities
// are recomputed. The gradients of q | k | v and of the output.
MixerTensors AttentionTensors(const ModelSpec& spec) {
  const int64_t qkv = 2 * QkvWidth(spec), out = 2 * QueryWidth(spec);
  return {.saved = {qkv, out, 4 * spec.heads}, .backward = {qkv, out}};
}

}  // namespace

extern const MixerKind kAttentionMixer;
constexpr MixerKind kAttentionMixer = {
    .symbol = '*',
    .name = "attention",
    .validate = ValidateAttention,
    .add = AddAttention,
    .add_flops = AddAttentionFlops,
    .tensors = AttentionTensors,
};

}  // namespace nibble
