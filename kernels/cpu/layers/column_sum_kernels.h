// Column sums of a matrix, for the gradients of biases and norm weights. Each block of rows
// (Blocks) writes its own sums, which are then added in the order of the blocks.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_COLUMN_SUM_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_COLUMN_SUM_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/tensor/matrix.h"

namespace nibble::cpu {

struct ColumnSumKernels {
  // sums: [m.cols] = Σ of m's rows [begin, end), FP32. By DType.
  void (*sum[2])(const ConstMatrix& m, int64_t begin, int64_t end, float* sums);
  // out[j] += Σ_b partial[b · stride + j] for j in [begin, end), b in [0, blocks), summed in FP64.
  void (*combine)(const float* partial, int64_t blocks, int64_t stride, int64_t begin, int64_t end,
                  float* out);

  static const ColumnSumKernels baseline, avx2, avx512;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_COLUMN_SUM_KERNELS_H_
