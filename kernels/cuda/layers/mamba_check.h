// Checks of CudaMambaOps against the CPU, and its times, on a card (layer_check.h).
//
// Thread-safety: none.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CHECK_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CHECK_H_

#include <string>
#include <string_view>

#include "kernels/cuda/layers/layer_check.h"

namespace nibble {

struct MambaCheckOptions {
  bool small = false;  // shapes that an emulated card runs in minutes
  bool few = false;    // and CasesOf them (layer_check.h)
  std::string part;    // only "conv", "tokens" or "scan"; empty: all

  bool Wants(std::string_view name) const { return part.empty() || part == name; }
};
// Each prints a line per group of checks as it ends.
void CheckMamba(LayerCheck& check, const MambaCheckOptions& options = {});
void TimeMamba(LayerCheck& check);

// The parts of CheckMamba.
void CheckMambaConv(LayerCheck& check, bool few);
void CheckMambaScan(LayerCheck& check, const MambaCheckOptions& options);
void CheckMambaTokens(LayerCheck& check, bool few);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CHECK_H_
