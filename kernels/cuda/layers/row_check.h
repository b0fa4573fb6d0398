// Checks and times norms, element-wise operations, embedding, cross entropy, the optimizer and a
// step's numbers on a card.
//
// Ownership: borrows. Thread-safety: none.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ROW_CHECK_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_ROW_CHECK_H_

#include "kernels/cuda/layers/layer_check.h"

namespace nibble {

void CheckNorms(LayerCheck& check);
void CheckElementwise(LayerCheck& check);
void CheckTokens(LayerCheck& check);
// What is computed in the CPU's order.
void CheckExact(LayerCheck& check);

void TimeRows(LayerCheck& check);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ROW_CHECK_H_
