#include "kernels/gemm/tile_plan.h"

namespace nibble::cpu {
namespace {

// Below this size a tile takes longer to start than to compute.
constexpr int64_t kLeastWork = 2 << 20;

int64_t Ceil(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// A size of about size/parts that wastes no step and makes equal parts.
int64_t Part(int64_t size, int64_t parts, int64_t step) {
  return std::min(size, Ceil(Ceil(size, parts), step) * step);
}

}  // namespace

TilePlan PlanTiles(int64_t m, int64_t n, int64_t k, const TileLimits& limits) {
  int64_t parts_m = Ceil(m, limits.largest_m);
  int64_t parts_n = Ceil(n, limits.largest_n);
  const auto plan = [&] {
    return TilePlan{m, n, Part(m, parts_m, limits.step_m), Part(n, parts_n, limits.step_n)};
  };
  while (true) {
    const TilePlan tiles = plan();
    if (tiles.tiles() >= limits.wanted_tiles || tiles.tile_m * tiles.tile_n * k < 2 * kLeastWork) {
      return tiles;
    }
    const bool can_m = tiles.tile_m > limits.step_m;
    const bool can_n = tiles.tile_n > limits.step_n;
    if (!can_m && !can_n) return tiles;
    // Cuts the longer side, so that tiles stay nearly square: these read the least per operation.
    (can_m && (!can_n || tiles.tile_m >= tiles.tile_n) ? parts_m : parts_n) *= 2;
  }
}

}  // namespace nibble::cpu
