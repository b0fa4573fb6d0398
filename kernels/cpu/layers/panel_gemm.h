// Small matmuls on one thread, inside other kernels (attention, scan): c[m, n] (+)= Σ_k a(m, k) ·
// b(k, n), FP32 accumulation, on the widest unit of the processor (AMX, AVX512-BF16, otherwise FP32
// vectors after widening). Operands are packed first, into buffers of the caller, so that one
// packing serves many matmuls.
//
// The result depends on operands and shape alone (and on the kind of processor: BF16 units treat
// subnormals as zeros).
//
// Ownership: borrows. Thread-safety: pure functions; on AMX a matmul needs a PanelThreadScope on
// its thread, which sets the tile registers up and releases them.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_H_
#define NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_H_

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/cpu/layers/layer_isa.h"

namespace nibble::cpu {

// A matrix in memory. `transposed`: element (i, j) is data[j * stride + i].
template <class T>
struct PanelSource {
  const T* data;
  int64_t stride;
  bool transposed = false;
};

// T is uint16_t (BF16) or float. Depth is padded with zeros to a multiple of kPanelDepth, b's
// columns and a's rows to multiples of kPanelLines, by packing; sizes given to the functions are
// the unpadded ones.
inline constexpr int kPanelDepth = 32;
inline constexpr int kPanelLines = 16;

constexpr int64_t PanelElements(int64_t lines, int64_t depth) {
  const auto up = [](int64_t x, int64_t to) { return (x + to - 1) / to * to; };
  return up(lines, kPanelLines) * up(depth, kPanelDepth);
}

template <class T>
struct PanelGemm {
  // a: [m, k] to out: [PanelElements(m, k)], 64-byte aligned.
  void (*pack_a)(const PanelSource<T>& a, int m, int k, T* out);
  // b: [k, n] to out: [PanelElements(n, k)].
  void (*pack_b)(const PanelSource<T>& b, int k, int n, T* out);
  // c: [m, n] row-major FP32, rows c_stride apart, only the m × n elements are touched.
  void (*multiply)(const T* a_packed, const T* b_packed, int m, int n, int k, float* c,
                   int64_t c_stride, bool accumulate);
  // The same for a slice of the depth of operands that were packed `a_depth` and `b_depth` deep.
  // The slice begins at a multiple of kPanelDepth: the pointers are advanced by 16 · that many
  // elements. It ends at a multiple of kPanelDepth or at the end of the packed depth.
  void (*multiply_slices)(const T* a_packed, int a_depth, const T* b_packed, int b_depth, int m,
                          int n, int k, float* c, int64_t c_stride, bool accumulate);

  static const PanelGemm baseline, avx2, avx512, avx512bf16, amx;
};

// The unit that multiplies, in ascending order of preference. The first three widen BF16 to FP32
// vectors.
enum class PanelIsa : uint8_t { kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmx };

std::string_view PanelIsaName(PanelIsa isa);
// The instruction set of vector kernels that run beside matmuls on `isa`.
LayerIsa VectorIsaOf(PanelIsa isa);
// Those that the processor and the operating system support, in that order; always includes
// kBaseline. The first call requests the tile registers from the system.
const std::vector<PanelIsa>& SupportedPanelIsas();
PanelIsa BestPanelIsa();

// The kernels of a family that accompany matmuls on `isa`, which the processor supports. In
// addition to the members in layer_isa.h, those for BF16 have `avx512bf16`.
template <template <class T> class Kernels, class T>
const Kernels<T>& TableFor(PanelIsa isa) {
  if constexpr (std::is_same_v<T, uint16_t>) {
    if (isa == PanelIsa::kAvx512Bf16 || isa == PanelIsa::kAmx) return Kernels<T>::avx512bf16;
  }
  return TableFor<Kernels<T>>(VectorIsaOf(isa));
}

// Null if the processor has no `isa`. FP32 matmuls of the last two are those of kAvx512.
template <class T>
const PanelGemm<T>* PanelGemmFor(PanelIsa isa);

// Scopes of one thread may nest. Inside one, the thread must not use the tile registers otherwise.
class PanelThreadScope {
 public:
  PanelThreadScope();
  ~PanelThreadScope();
  PanelThreadScope(const PanelThreadScope&) = delete;
  PanelThreadScope& operator=(const PanelThreadScope&) = delete;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_H_
