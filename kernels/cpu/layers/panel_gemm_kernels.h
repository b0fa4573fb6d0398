// The matmuls of panel_gemm.h, one table per instruction set, all with the layout of
// panel_layout.h.
//
// Thread-safety: pure functions, see panel_gemm.h.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/panel_gemm.h"

namespace nibble::cpu {

namespace baseline {
extern const PanelGemm<float> kPanelFp32;
extern const PanelGemm<uint16_t> kPanelBf16;
}  // namespace baseline
namespace avx2 {
extern const PanelGemm<float> kPanelFp32;
extern const PanelGemm<uint16_t> kPanelBf16;
}  // namespace avx2
namespace avx512 {
extern const PanelGemm<float> kPanelFp32;
extern const PanelGemm<uint16_t> kPanelBf16;
}  // namespace avx512
namespace avx512bf16 {
extern const PanelGemm<uint16_t> kPanelBf16;
}  // namespace avx512bf16
namespace amx {
extern const PanelGemm<uint16_t> kPanelBf16;
// Configure the calling thread's tiles for kPanelBf16, and release them.
void LoadTiles();
void ReleaseTiles();
}  // namespace amx

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_KERNELS_H_
