// Checks and measurements of the CUDA GEMM engine on a card.
//
// Thread-safety: none.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_GEMM_CHECK_H_
#define NIBBLE_KERNELS_CUDA_GEMM_GEMM_CHECK_H_

#include "kernels/cuda/layers/layer_check.h"

namespace nibble {

// What the installed cuBLASLt accepts, every case of gemm_cases.h on engines with all options, bad
// numbers, captured graphs, and results of default and of stored choices of algorithms.
// `few`: some cases of two engines, and bad numbers.
void CheckGemms(LayerCheck& check, bool few = false);
// The matmuls of the 1.2B and the 124M model in BF16, and of the 1.2B in every other format, and
// what measuring algorithms gains in BF16.
void TimeGemms(LayerCheck& check);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_GEMM_GEMM_CHECK_H_
