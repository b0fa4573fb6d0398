#include "worker/infer/memory_speed.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

namespace nibble {

double MeasureCopySpeed(ThreadPool& pool, int64_t traffic) {
  constexpr int64_t kMost = int64_t{1} << 28;
  constexpr int kCopies = 5;
  constexpr int64_t kPart = int64_t{1} << 17;
  const int64_t parts = std::max<int64_t>(1, std::min(traffic, kMost) / 2 / kPart);
  std::vector<char> from(static_cast<size_t>(parts * kPart), 1);
  std::vector<char> to(from.size(), 2);
  double best = 0;
  for (int i = 0; i < kCopies; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    pool.ParallelFor(parts, [&](int64_t part, int) {
      std::memcpy(to.data() + part * kPart, from.data() + part * kPart, kPart);
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, 2.0 * static_cast<double>(parts * kPart) / std::max(seconds, 1e-9));
  }
  return best;
}

}  // namespace nibble
