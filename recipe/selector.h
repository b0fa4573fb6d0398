// Which linear layers a rule speaks of:
//   "first 2 blocks", "last 8 blocks"   at either end
//   "block 3", "blocks 4-7"             from 0, both ends included
//   "attention.qkv", "mlp"              a kind, or all kinds of a mixer
//   "blocks.3", "blocks.3.mlp.up"       a block or a layer by name
//   "mamba.*", "blocks.*.mlp.up", "*"   globs over kinds and names: * any text, ? any character
//   "mlp.down in last 8 blocks"         both
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_RECIPE_SELECTOR_H_
#define NIBBLE_RECIPE_SELECTOR_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/outline.h"

namespace nibble {

class Selector {
 public:
  // InvalidArgument naming the text and what a selector can be.
  static absl::StatusOr<Selector> Parse(std::string_view text);

  const std::string& text() const { return text_; }

  // Indices in outline.linears, ascending. InvalidArgument where no layer matches, or a block is
  // beyond the model's: names the selector, the bound, and the nearest name that would match.
  absl::StatusOr<std::vector<int64_t>> Select(const Outline& outline) const;

 private:
  enum class Range : uint8_t { kNone, kFirst, kLast, kBetween };

  absl::Status CheckRange(int64_t blocks) const;
  bool Matches(const LinearInfo& layer, int64_t blocks) const;

  std::string text_;
  std::string pattern_ = "*";
  Range range_ = Range::kNone;
  int64_t from_ = 0;  // the count of kFirst and kLast
  int64_t to_ = 0;    // of kBetween, included
};

}  // namespace nibble

#endif  // NIBBLE_RECIPE_SELECTOR_H_
