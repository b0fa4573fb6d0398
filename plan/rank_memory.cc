#include "plan/rank_memory.h"

#include <algorithm>
#include <vector>

#include "common/status_macros.h"
#include "model/field_check.h"
#include "model/mixers.h"
#include "plan/copies.h"
#include "plan/units.h"
#include "recipe/render.h"

namespace nibble {
namespace {

constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr int64_t kMostTokens = int64_t{1} << 24;
// Of a CUDA backend: CudaBackend::chunk_bytes().
constexpr int64_t kCardChunkBytes = int64_t{2} << 30;

// The sum of a list of tensors of `tokens` rows.
int64_t AlignedSum(const std::vector<int64_t>& bytes_per_token, int64_t tokens) {
  int64_t sum = 0;
  for (const int64_t bytes : bytes_per_token) sum += Aligned(bytes * tokens);
  return sum;
}

// Rows of logits that the head computes at a time, as Head::Allocate.
int64_t ChunkRows(int64_t vocab, int64_t tokens, int64_t chunk_bytes) {
  constexpr int64_t kFewestRows = 128, kFewestRowBytes = int64_t{64} << 10;
  const int64_t row_bytes = std::max((kFp32Bytes + kBf16Bytes) * vocab, kFewestRowBytes);
  return std::min(std::max(chunk_bytes / row_bytes / 64 * 64, kFewestRows), tokens);
}

}  // namespace

absl::Status CheckBatch(const BatchShape& batch) {
  NIBBLE_RETURN_IF_ERROR(CheckSize("batch", batch.sequences, kMostTokens));
  NIBBLE_RETURN_IF_ERROR(CheckSize("sequence", batch.length, kMostTokens));
  return CheckSize("tokens", batch.tokens(), kMostTokens);
}

absl::StatusOr<ModelMemory> LayOutModel(const Outline& outline, const ResolvedRecipe& recipe,
                                        const GemmHardware& hardware, const BatchShape& batch,
                                        int64_t chunk_bytes) {
  using enum OperandRole;
  NIBBLE_RETURN_IF_ERROR(CheckLayers(recipe, outline));
  NIBBLE_RETURN_IF_ERROR(CheckBatch(batch));
  const ModelSpec& spec = outline.spec;
  const int64_t tokens = batch.tokens();
  const int64_t stream = Aligned(kBf16Bytes * tokens * spec.d_model);
  const int64_t norm_floats =
      (spec.norm == NormKind::kLayerNorm ? 2 : 1) * Aligned(kFp32Bytes * tokens);

  // The norm's and a mixer's output, the final norm's, the gradients of the residual stream and of
  // a norm's output; each block's input; the final norm's input and figures.
  const int64_t kept = (5 + spec.blocks() + 1) * stream + norm_floats;
  int64_t working = 0, copies_of_linears = 0;
  int64_t saved = 0, scratch = 0, transient = 0;  // of all blocks; the largest block; linear
  size_t linear = 0;
  for (int64_t i = 0; i < spec.blocks(); ++i) {
    const MixerTensors mixer = FindMixerKind(spec.pattern[static_cast<size_t>(i)])->tensors(spec);
    int64_t block = norm_floats + AlignedSum(mixer.saved, tokens);
    int64_t inside = AlignedSum(mixer.backward, tokens);
    bool first = true, last_keeps_input = false;
    for (; linear < outline.linears.size() && outline.linears[linear].block == i; ++linear) {
      const LayerRecipe& layer = recipe.layers[linear];
      const LinearInfo& info = outline.linears[linear];
      const LinearCopies copies = PlanCopies(layer, hardware);
      const auto bytes = [&](OperandRole role) {
        return CopyBytes(copies, layer, role, info, tokens);
      };
      for (const OperandRole role : kAllOperandRoles) copies_of_linears += copies[role].exists();
      working += WorkingWeightBytes(copies, layer, info);
      block += bytes(kWgradActivation);
      transient = std::max(
          {transient, bytes(kFpropActivation), bytes(kDgradGradient) + bytes(kWgradGradient)});
      if (first && copies.keeps_input) block += stream;
      first = false;
      last_keeps_input = copies.keeps_input;
    }
    (last_keeps_input ? block : inside) += Aligned(mixer.last_input * tokens);
    saved = batch.recompute ? std::max(saved, block) : saved + block;
    scratch = std::max(scratch, inside);
  }
  const int64_t rows = ChunkRows(spec.vocab, tokens, chunk_bytes);
  scratch = std::max(
      scratch, Aligned(kFp32Bytes * rows * spec.vocab) + Aligned(kBf16Bytes * rows * spec.vocab));
  working += Aligned(kBf16Bytes * spec.vocab * spec.d_model);  // the head's weight
  working += Aligned(8 * copies_of_linears);                   // counts of NaN and infinities
  return ModelMemory{.working_weights = working,
                     .activations = kept + saved,
                     .scratch = scratch + transient + Aligned(1) * copies_of_linears};
}

absl::StatusOr<RankMemory> PlanRankMemory(const Outline& outline, const ResolvedRecipe& recipe,
                                          const MemoryRequest& request) {
  NIBBLE_RETURN_IF_ERROR(CheckSize("ranks", request.ranks(), kMostRanks));
  NIBBLE_ASSIGN_OR_RETURN(const ModelMemory model, LayOutModel(outline, recipe, request.hardware,
                                                               request.batch, kCardChunkBytes));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Unit> units,
                          MakeUnits(outline, recipe, request.hardware, request.batch.length));
  const int64_t ranks = request.ranks();
  const int64_t parameters = outline.parameters();
  const int64_t part = CeilDiv(parameters, ranks);
  RankMemory memory = {.master = kFp32Bytes * part,
                       .moments = 2 * kFp32Bytes * part,
                       .gradients = kFp32Bytes * parameters,
                       .working_weights = model.working_weights,
                       .activations = model.activations,
                       .scratch = model.scratch};
  if (ranks == 1) return memory;

  const auto gradient_bytes = [](const Unit& unit) { return kFp32Bytes * unit.parameters; };
  memory.gradients = kFp32Bytes * part + (request.sharding == Sharding::kOptimizer
                                              ? kFp32Bytes * parameters
                                              : LargestPair(units, gradient_bytes));
  int64_t packed = 0, working = 0;
  for (const Unit& unit : units) {
    packed += unit.packed_bytes - unit.tied_bytes;
    working += unit.working_bytes - unit.tied_bytes;
  }
  if (request.sharding == Sharding::kWeights) {
    memory.working_weights = CeilDiv(packed, ranks);
    memory.gathered = LargestPair(units, [](const Unit& unit) { return unit.working_bytes; });
  } else {
    memory.working_weights = working;
  }
  // Weights in BF16 arrive where they are read.
  const auto arriving = [](const Unit& unit) {
    return unit.packed_bytes < unit.bf16_bytes ? unit.packed_bytes : int64_t{0};
  };
  const int64_t receive = LargestUnit(units, gradient_bytes);
  memory.exchange = LargestPair(units, arriving) + receive;
  if (request.nodes > 1) memory.exchange += CeilDiv(receive, request.cards_per_node);
  return memory;
}

absl::StatusOr<int64_t> LargestBatch(const Outline& outline, const ResolvedRecipe& recipe,
                                     MemoryRequest request, int64_t device_bytes) {
  const auto fits = [&](int64_t sequences) -> absl::StatusOr<bool> {
    request.batch.sequences = sequences;
    NIBBLE_ASSIGN_OR_RETURN(const RankMemory memory, PlanRankMemory(outline, recipe, request));
    return memory.total() <= device_bytes;
  };
  // The plan grows with the batch: least fits (or is 0), most does not.
  int64_t least = 0, most = kMostTokens / std::max<int64_t>(1, request.batch.length) + 1;
  while (most - least > 1) {
    const int64_t middle = least + (most - least) / 2;
    NIBBLE_ASSIGN_OR_RETURN(const bool fit, fits(middle));
    (fit ? least : most) = middle;
  }
  return least;
}

absl::StatusOr<int64_t> FewestNodes(const Outline& outline, const ResolvedRecipe& recipe,
                                    MemoryRequest request, int64_t device_bytes) {
  for (request.nodes = 1; request.nodes <= 1024; request.nodes *= 2) {
    NIBBLE_ASSIGN_OR_RETURN(const RankMemory memory, PlanRankMemory(outline, recipe, request));
    if (memory.total() <= device_bytes) return request.nodes;
  }
  return 0;
}

}  // namespace nibble
