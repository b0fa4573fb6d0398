// Checks of attention at the sizes of training, against the CPU's results of one key head. Their
// measurements are TimeAttention (attention_check.h).
//
// Ownership: borrows. Thread-safety: none.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_LARGE_CHECK_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_LARGE_CHECK_H_

#include <vector>

#include "kernels/cuda/layers/attention_check_data.h"
#include "kernels/cuda/layers/cuda_attention_ops.h"
#include "kernels/cuda/layers/layer_check.h"

namespace nibble {

const std::vector<AttentionCase>& TrainingShapes();
void CheckTrainingShape(LayerCheck& check, CudaAttentionOps& ops, const AttentionCase& problem);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_LARGE_CHECK_H_
