// The tile registers of AMX, which its matmuls need.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_AMX_H_
#define NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_AMX_H_

namespace nibble::cpu::amx {

// Configure the calling thread's tiles for PanelGemm::amx, and release them.
void LoadTiles();
void ReleaseTiles();

}  // namespace nibble::cpu::amx

#endif  // NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_AMX_H_
