#include "model/mixers.h"
#include "model/outline.h"

namespace nibble {

FlopsPerToken CountFlops(const Outline& outline, int64_t sequence) {
  const ModelSpec& spec = outline.spec;
  FlopsPerToken flops;
  for (const LinearInfo& linear : outline.linears) {
    flops.linears += 2 * static_cast<double>(linear.in) * static_cast<double>(linear.out);
  }
  for (const char symbol : spec.pattern) FindMixer(symbol)->add_flops(spec, sequence, flops);
  flops.head = 2 * static_cast<double>(spec.d_model) * static_cast<double>(spec.vocab);
  return flops;
}

}  // namespace nibble
