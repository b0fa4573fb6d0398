#include "model/memory.h"

#include <algorithm>

#include "common/status_macros.h"
#include "model/field_check.h"
#include "model/mixers.h"

namespace nibble {
namespace {

constexpr int64_t kMaxRanks = int64_t{1} << 20;
constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kF32 = 4;
constexpr int64_t kBf16 = 2;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

absl::StatusOr<MemoryPerRank> EstimateMemory(const Outline& outline, int64_t ranks,
                                             int64_t tokens) {
  NIBBLE_RETURN_IF_ERROR(CheckSize("ranks", ranks, kMaxRanks));
  NIBBLE_RETURN_IF_ERROR(CheckSize("tokens", tokens, kMaxTokens));
  const ModelSpec& spec = outline.spec;
  const int64_t parameters = outline.parameters();
  int64_t linear_weights = 0;
  for (const LinearInfo& linear : outline.linears) linear_weights += linear.in * linear.out;

  MemoryPerRank memory;
  const int64_t slice = CeilDiv(parameters, ranks);
  memory.master = kF32 * slice;
  memory.moments = 2 * kF32 * slice;
  memory.gradients = kF32 * parameters;
  memory.working_bf16 = kBf16 * parameters;
  memory.working_nvfp4 = kBf16 * (parameters - linear_weights) + CeilDiv(linear_weights, 2) +
                         CeilDiv(linear_weights, 16);

  const int64_t stream = kBf16 * spec.d_model;
  const int64_t norm = stream + (spec.norm == NormKind::kLayerNorm ? 2 : 1) * kF32;
  const int64_t ends = stream + norm;
  int64_t all_rest = 0, largest_rest = 0;
  for (const char symbol : spec.pattern) {
    const int64_t rest = norm + FindMixerKind(symbol)->saved_bytes(spec);
    all_rest += rest;
    largest_rest = std::max(largest_rest, rest);
  }
  const int64_t inputs = spec.blocks() * stream;
  memory.activations_saved = tokens * (inputs + all_rest + ends);
  memory.activations_recomputed = tokens * (inputs + largest_rest + ends);
  return memory;
}

}  // namespace nibble
