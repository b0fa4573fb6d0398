// Cuts C into tiles, each computed by one thread. The cut depends only on the shape, so that
// results do not depend on the number of threads.
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
  // The block that the kernel computes at once, in row-major terms: tiles of whole blocks waste
  // none.
  int64_t step_m, step_n;
  // The number of tiles that keeps a machine's threads busy; more tiles read operands more often.
  int64_t wanted_tiles;
};
// FP32 GEMMs: within 4 % of an uncut GEMM on one core; a quarter of the size loses 11 %.
inline constexpr TileLimits kFp32Tiles = {1024, 1024, 8, 48, 16};
// BF16 GEMMs are so much faster that the pass over the FP32 sums matters: the sums fit into the
// second-level cache of processors that have BF16 GEMMs (2 MiB).
inline constexpr TileLimits kBf16Tiles = {512, 512, 32, 64, 8};
// GEMMs in slices of K read two tiles of sums for each slice.
inline constexpr TileLimits kSlicedTiles = {512, 384, 8, 48, 16};

// m, n, k > 0.
TilePlan PlanTiles(int64_t m, int64_t n, int64_t k, const TileLimits& limits);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_GEMM_TILE_PLAN_H_
