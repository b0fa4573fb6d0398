// The loops around a tile's GEMM: widening operands, scaling and adding sums, rounding results. One
// version per instruction set; the choice affects speed, never a bit.
//
// Ownership: borrows all pointers. Thread-safety: pure, apart from the memory written.
#ifndef NIBBLE_KERNELS_GEMM_TILE_LOOPS_H_
#define NIBBLE_KERNELS_GEMM_TILE_LOOPS_H_

#include <cstdint>

namespace nibble::cpu {

struct TileLoops {
  // out[i] = x[i].
  void (*widen)(const uint16_t* x, int64_t count, float* out);

  // One row of a slice's sums: acc[j] (first ? = : +=) (partial[j] · row_scale) · col_scale[j].
  void (*add_scaled)(const float* partial, float row_scale, const float* col_scale, int64_t count,
                     bool first, float* acc);

  // One row of results: ((acc[j] · alpha) · row_scale) · col_scale[j], plus c[j] with `accumulate`,
  // as FP32 or rounded to BF16. `acc` may be `c`.
  void (*finish_f32)(const float* acc, float alpha, float row_scale, const float* col_scale,
                     int64_t count, bool accumulate, float* c);
  void (*finish_bf16)(const float* acc, float alpha, float row_scale, const float* col_scale,
                      int64_t count, bool accumulate, uint16_t* c);
};

// The fastest version for this processor.
const TileLoops& BestTileLoops();
// All versions that this processor supports, the simplest first; for tests.
int TileLoopsCount();
const TileLoops& TileLoopsAt(int index);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_GEMM_TILE_LOOPS_H_
