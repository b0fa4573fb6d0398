#include "worker/trainer/data/token_store.h"

#include <cstdint>

namespace nibble {

int64_t TokenSource::DocumentOf(int64_t position) const {
  int64_t low = 0;
  int64_t high = documents();
  // DocumentBegin(low) <= position < DocumentBegin(high)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (DocumentBegin(middle) <= position ? low : high) = middle;
  }
  return low;
}

}  // namespace nibble
