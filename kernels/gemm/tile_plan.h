// How C is cut into tiles, each of which one thread computes whole. The cut follows from the shape
// alone, so that results do not depend on how many threads there are.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_KERNELS_GEMM_TILE_PLAN_H_
#define NIBBLE_KERNELS_GEMM_TILE_PLAN_H_

#include <algorithm>
#include <cstdint>

namespace nibble::cpu {

struct Tile {
  int64_t row, col, rows, cols;
};

struct TilePlan {
  int64_t m, n;
  int64_t tile_m, tile_n;

  int64_t across() const { return (n + tile_n - 1) / tile_n; }
  int64_t tiles() const { return (m + tile_m - 1) / tile_m * across(); }
  Tile At(int64_t index) const {
    const int64_t row = index / across() * tile_m;
    const int64_t col = index % across() * tile_n;
    return {row, col, std::min(tile_m, m - row), std::min(tile_n, n - col)};
  }
};

struct TileLimits {
  int64_t largest_m, largest_n;
  // What the kernel computes at once, in row-major terms: tiles of whole steps waste none of it.
  int64_t step_m, step_n;
  // Tiles that keep a machine's threads busy; more of them read their operands more often.
  int64_t wanted_tiles;
};
// FP32 products: within 4 % of an uncut product on one core; a quarter the size loses 11 %.
inline constexpr TileLimits kFp32Tiles = {1024, 1024, 8, 48, 16};
// BF16 products are so much faster that the pass over the FP32 sums counts: they fit a second-level
// cache of the processors that have such products (2 MiB).
inline constexpr TileLimits kBf16Tiles = {512, 512, 32, 64, 8};
// Products in slices of K go over two tiles of sums for each slice.
inline constexpr TileLimits kSlicedTiles = {512, 384, 8, 48, 16};

// m, n, k > 0.
TilePlan PlanTiles(int64_t m, int64_t n, int64_t k, const TileLimits& limits);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_GEMM_TILE_PLAN_H_
