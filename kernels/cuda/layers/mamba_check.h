// Checks of CudaMambaOps against the CPU, and its times, on a card (layer_check.h).
//
// Thread-safety: none.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CHECK_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CHECK_H_

#include "kernels/cuda/layers/layer_check.h"

namespace nibble {

// Each prints a line per group of checks as it ends. small: shapes that an emulated card runs in
// minutes.
void CheckMamba(LayerCheck& check, bool small = false);
void TimeMamba(LayerCheck& check);

// The parts of CheckMamba.
void CheckMambaConv(LayerCheck& check);
void CheckMambaScan(LayerCheck& check, bool small);
void CheckMambaTokens(LayerCheck& check);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CHECK_H_
