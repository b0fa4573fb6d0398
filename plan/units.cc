#include "plan/units.h"

#include <algorithm>

#include "common/status_macros.h"
#include "model/mixers.h"
#include "plan/copies.h"
#include "recipe/render.h"

namespace nibble {

absl::StatusOr<std::vector<Unit>> MakeUnits(const Outline& outline, const ResolvedRecipe& recipe,
                                            const GemmHardware& hardware, int64_t sequence) {
  NIBBLE_RETURN_IF_ERROR(CheckLayers(recipe, outline));
  const ModelSpec& spec = outline.spec;
  std::vector<Unit> units(static_cast<size_t>(spec.blocks()) + 2);
  // Parameters outside the blocks are the embedding's up to the first block, then the head's.
  Unit* outside = &units.front();
  for (const ParamInfo& param : outline.params) {
    if (param.name == "final_norm.weight") outside = &units.back();
    Unit& unit = param.block < 0 ? *outside : units[static_cast<size_t>(param.block) + 1];
    const int64_t elements = param.elements();
    unit.parameters += elements;
    unit.bf16_bytes += kBf16Bytes * elements;
    if (param.linear < 0) {
      unit.packed_bytes += kBf16Bytes * elements;
      unit.working_bytes += kBf16Bytes * elements;
      continue;
    }
    const LayerRecipe& layer = recipe.layers[static_cast<size_t>(param.linear)];
    const LinearInfo& linear = outline.linears[static_cast<size_t>(param.linear)];
    unit.packed_bytes += PackedWeightBytes(layer, linear);
    unit.working_bytes += WorkingWeightBytes(PlanCopies(layer, hardware), layer, linear);
    unit.forward_flops += 2 * static_cast<double>(elements);
  }
  const int64_t head = spec.vocab * spec.d_model;
  if (spec.tied_head) {
    Unit& unit = units.back();
    unit.tied_bytes = kBf16Bytes * head;
    unit.packed_bytes += unit.tied_bytes;
    unit.bf16_bytes += unit.tied_bytes;
    unit.working_bytes += unit.tied_bytes;
  }
  units.back().forward_flops += 2 * static_cast<double>(head);
  for (int64_t i = 0; i < spec.blocks(); ++i) {
    Unit& unit = units[static_cast<size_t>(i) + 1];
    unit.block = true;
    FlopsPerToken mixer;
    FindMixerKind(spec.pattern[static_cast<size_t>(i)])->add_flops(spec, sequence, mixer);
    unit.forward_flops += mixer.forward();
  }
  return units;
}

int64_t LargestUnit(std::span<const Unit> units, absl::FunctionRef<int64_t(const Unit&)> bytes) {
  int64_t largest = 0;
  for (const Unit& unit : units) largest = std::max(largest, bytes(unit));
  return largest;
}

int64_t LargestPair(std::span<const Unit> units, absl::FunctionRef<int64_t(const Unit&)> bytes) {
  int64_t largest = 0;
  for (size_t i = 0; i + 1 < units.size(); ++i) {
    largest = std::max(largest, bytes(units[i]) + bytes(units[i + 1]));
  }
  return largest;
}

}  // namespace nibble
