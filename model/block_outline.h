// Adds one block's mixer to an Outline: the one place that knows how parameters and linears are
// named, initialised and decayed.
//
// Ownership: borrows the Outline and the mixer's name. Thread-safety: none, as the Outline's.
#ifndef NIBBLE_MODEL_BLOCK_OUTLINE_H_
#define NIBBLE_MODEL_BLOCK_OUTLINE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/outline.h"

namespace nibble {

// Whether a linear's result goes to the residual stream: those may start smaller
// (ModelSpec::scale_output_init), so that the stream does not grow with the number of blocks.
enum class LinearEnd : uint8_t { kInside, kResidual };

class BlockOutline {
 public:
  // `outline` has its spec; `mixer` is its Mixer::name.
  BlockOutline(Outline& outline, int64_t block, std::string_view mixer)
      : outline_(outline), block_(block), mixer_(mixer) {}

  // "blocks.<block>.<mixer>.<name>": weight [out, in], and bias [out] where the model has biases.
  void AddLinear(std::string_view name, int64_t in, int64_t out, LinearEnd end);
  // "blocks.<block>.<mixer>.<name>", never decayed: what a mixer has beside its linears is vectors,
  // or filters of one vector per channel.
  void AddParam(std::string_view name, std::vector<int64_t> shape, Init init, double scale = 0);

 private:
  Outline& outline_;
  const int64_t block_;
  const std::string_view mixer_;
};

// "<prefix>.weight" [width], ones, and with LayerNorm "<prefix>.bias" [width], zeros.
void AddNorm(Outline& outline, std::string_view prefix, int64_t block, int64_t width);

}  // namespace nibble

#endif  // NIBBLE_MODEL_BLOCK_OUTLINE_H_
