// The products behind panel_gemm.h, one table per instruction set. Packed operands lie as
// panel_layout.h says in all of them.
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
// Set the calling thread's tiles up for kPanelBf16, and give them back.
void LoadTiles();
void ReleaseTiles();
}  // namespace amx

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_KERNELS_H_
