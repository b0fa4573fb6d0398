#include "worker/trainer/data/token_store.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace nibble {

absl::Status TokenSource::Verify() const {
  std::vector<int32_t> block(std::min<int64_t>(tokens(), int64_t{1} << 16));
  for (int64_t first = 0; first < tokens();) {
    const int64_t count = std::min<int64_t>(tokens() - first, static_cast<int64_t>(block.size()));
    if (absl::Status status = Read(first, count, block.data()); !status.ok()) return status;
    first += count;
  }
  return absl::OkStatus();
}

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
