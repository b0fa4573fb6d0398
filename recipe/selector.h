// Text forms of operands and sets of layers, for tables and differences.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_RECIPE_SELECTOR_H_
#define NIBBLE_RECIPE_SELECTOR_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/outline.h"
#include "recipe/recipe.h"

namespace nibble {

// "bf16", "nvfp4 16x16", "nvfp4 1x16 stochastic hadamard16 signs=none": every property that differs
// from nearest rounding, no transform, fixed signs and the current formula. Equal names, equal
// specs.
std::string OperandName(const OperandFormat& operand);

// "blocks 2-53", "block 7", "blocks 0-1, 54-61". `blocks` and `among` ascend; neighbours in `among`
// are written as a range.
std::string BlockRanges(const std::vector<int64_t>& blocks, const std::vector<int64_t>& among);

// `layers`: ascending indices in outline.linears. "all 24 layers"; "4 layers: blocks 0-1" for whole
// blocks; otherwise by kind, "3 layers: mlp.up in blocks 1-5".
std::string DescribeLayers(const Outline& outline, const std::vector<int64_t>& layers);

// The blocks that have a layer of `kind` (of any kind if it is empty), ascending.
std::vector<int64_t> BlocksWith(const Outline& outline, const std::string& kind);

// Selects the linear layers that a rule applies to:
//   "first 2 blocks", "last 8 blocks"   at either end
//   "block 3", "blocks 4-7"             from 0, both ends included
//   "attention.qkv", "mlp"              a kind, or all kinds of a mixer
//   "blocks.3", "blocks.3.mlp.up"       a block or a layer by name
//   "mamba.*", "blocks.*.mlp.up", "*"   globs over kinds and names: * any text, ? any character
//   "mlp.down in last 8 blocks"         both
//
// Thread-safety: values and pure functions.

class Selector {
 public:
  // InvalidArgument naming the text and the forms of a selector.
  static absl::StatusOr<Selector> Parse(std::string_view text);

  const std::string& text() const { return text_; }

  // Indices in outline.linears, ascending. InvalidArgument if no layer matches or a block is beyond
  // the model's last: names the selector, the bound, and the nearest name that would match.
  absl::StatusOr<std::vector<int64_t>> Select(const Outline& outline) const;

 private:
  enum class Range : uint8_t { kNone, kFirst, kLast, kBetween };

  absl::Status CheckRange(int64_t blocks) const;
  bool Matches(const LinearInfo& layer, int64_t blocks) const;

  std::string text_;
  std::string pattern_ = "*";
  Range range_ = Range::kNone;
  int64_t from_ = 0;  // for kFirst and kLast: the count
  int64_t to_ = 0;    // for kBetween; inclusive
};

}  // namespace nibble

#endif  // NIBBLE_RECIPE_SELECTOR_H_
