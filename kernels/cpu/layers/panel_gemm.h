// Small matrix products on one thread, for what lives inside another kernel (attention, scan):
// c[m, n] (+)= Σ_k a(m, k) · b(k, n), FP32 accumulation, on the widest unit the processor has (AMX,
// AVX512-BF16, else vectors of FP32 after widening). Operands are packed first, into buffers that
// the caller keeps, so that one packing serves many products.
//
// The result of a product depends on its operands and shape alone (and on the processor's kind: the
// BF16 units of processors take subnormals for zeros).
//
// Ownership: borrows. Thread-safety: pure functions; on AMX a thread must have called
// PanelThreadScope around its products (it sets the tile registers up and releases them).
#ifndef NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_H_
#define NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_H_

#include <cstdint>
#include <string_view>
#include <vector>

namespace nibble::cpu {

// A matrix as it lies in memory. `transposed`: element (i, j) is data[j * stride + i].
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
  // The same with k of the depth of operands that were packed `a_depth` and `b_depth` deep, from
  // multiples of kPanelDepth on: the pointers are 16 · that many elements in. The slice ends at a
  // multiple of kPanelDepth or where the packed depth does.
  void (*multiply_slices)(const T* a_packed, int a_depth, const T* b_packed, int b_depth, int m,
                          int n, int k, float* c, int64_t c_stride, bool accumulate);
};

// What multiplies, the preferred one last. The first three widen BF16 to FP32 on the way into
// vectors.
enum class PanelIsa : uint8_t { kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmx };

std::string_view PanelIsaName(PanelIsa isa);
// Those that this processor and its operating system let this process use, in that order; kBaseline
// is always there. The first call asks the system for the tile registers.
const std::vector<PanelIsa>& SupportedPanelIsas();
PanelIsa BestPanelIsa();

// Null where the processor has no `isa`. FP32 products of the last two are those of kAvx512.
template <class T>
const PanelGemm<T>* PanelGemmFor(PanelIsa isa);
template <>
const PanelGemm<uint16_t>* PanelGemmFor<uint16_t>(PanelIsa isa);
template <>
const PanelGemm<float>* PanelGemmFor<float>(PanelIsa isa);

// The best for this processor; the same object every time.
template <class T>
const PanelGemm<T>& BestPanelGemm();
template <>
const PanelGemm<uint16_t>& BestPanelGemm<uint16_t>();
template <>
const PanelGemm<float>& BestPanelGemm<float>();

// Scopes of one thread may nest. Nothing else of the thread may use the tile registers inside one.
class PanelThreadScope {
 public:
  PanelThreadScope();
  ~PanelThreadScope();
  PanelThreadScope(const PanelThreadScope&) = delete;
  PanelThreadScope& operator=(const PanelThreadScope&) = delete;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_PANEL_GEMM_H_
