#include "recipe/layer_names.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace nibble {
namespace {

void AddOnce(std::vector<int64_t>& blocks, int64_t block) {
  if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
}

// The blocks of `layers` where those are all the linear layers of their blocks; else nothing.
std::vector<int64_t> WholeBlocks(const Outline& outline, const std::vector<int64_t>& layers) {
  std::vector<int64_t> blocks;
  for (const int64_t layer : layers) AddOnce(blocks, outline.linears[layer].block);
  size_t inside = 0;
  for (const LinearInfo& layer : outline.linears) {
    inside += std::binary_search(blocks.begin(), blocks.end(), layer.block) ? 1 : 0;
  }
  return inside == layers.size() ? blocks : std::vector<int64_t>();
}

}  // namespace

std::string OperandName(const OperandFormat& operand) {
  if (!operand) return "bf16";
  const HadamardSpec& hadamard = operand->hadamard;
  std::string name =
      absl::StrCat(std::string(Info(operand->format).name), " ", BlockShapeName(operand->block));
  if (operand->rounding == Rounding::kStochastic) absl::StrAppend(&name, " stochastic");
  if (hadamard.size != 0) absl::StrAppend(&name, " hadamard", hadamard.size);
  if (hadamard.size != 0 && hadamard.signs == SignChoice::kNone) {
    absl::StrAppend(&name, " signs=none");
  } else if (hadamard.size != 0 && hadamard.signs == SignChoice::kSeeded) {
    absl::StrAppend(&name, " signs=seeded:", hadamard.seed);
  } else if (hadamard.size != 0 && hadamard.signs == SignChoice::kGiven) {
    absl::StrAppendFormat(&name, " signs=0x%08x%08x%08x%08x", hadamard.mask[3], hadamard.mask[2],
                          hadamard.mask[1], hadamard.mask[0]);
  }
  if (operand->formula != FormulaVersion::kTe2_14) {
    absl::StrAppend(&name, " ", std::string(FormulaVersionName(operand->formula)));
  }
  return name;
}

std::string BlockRanges(const std::vector<int64_t>& blocks, const std::vector<int64_t>& among) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < blocks.size();) {
    size_t end = i + 1;
    auto at = std::find(among.begin(), among.end(), blocks[i]);
    while (end < blocks.size() && ++at < among.end() && *at == blocks[end]) ++end;
    ranges.push_back(end == i + 1 ? absl::StrCat(blocks[i])
                                  : absl::StrCat(blocks[i], "-", blocks[end - 1]));
    i = end;
  }
  return absl::StrCat(blocks.size() == 1 ? "block " : "blocks ", absl::StrJoin(ranges, ", "));
}

std::vector<int64_t> BlocksWith(const Outline& outline, const std::string& kind) {
  std::vector<int64_t> blocks;
  for (const LinearInfo& layer : outline.linears) {
    if (kind.empty() || layer.kind == kind) AddOnce(blocks, layer.block);
  }
  return blocks;
}

std::string DescribeLayers(const Outline& outline, const std::vector<int64_t>& layers) {
  const std::string count = absl::StrCat(layers.size(), layers.size() == 1 ? " layer" : " layers");
  if (layers.size() == outline.linears.size()) return absl::StrCat("all ", count);
  const std::vector<int64_t> whole = WholeBlocks(outline, layers);
  if (!whole.empty()) {
    return absl::StrCat(count, ": ", BlockRanges(whole, BlocksWith(outline, "")));
  }
  std::vector<std::string> kinds, parts;
  for (const int64_t layer : layers) {
    const std::string& kind = outline.linears[layer].kind;
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  for (const std::string& kind : kinds) {
    std::vector<int64_t> blocks;
    for (const int64_t layer : layers) {
      if (outline.linears[layer].kind == kind) AddOnce(blocks, outline.linears[layer].block);
    }
    const std::vector<int64_t> all = BlocksWith(outline, kind);
    parts.push_back(blocks == all ? kind : absl::StrCat(kind, " in ", BlockRanges(blocks, all)));
  }
  return absl::StrCat(count, ": ", absl::StrJoin(parts, "; "));
}

}  // namespace nibble
