// The instruction set of the layer kernels. Each family of kernels is compiled once per set
// (isa.bzl) and has a table of functions for each.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_LAYER_ISA_H_
#define NIBBLE_KERNELS_CPU_LAYERS_LAYER_ISA_H_

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

namespace nibble::cpu {

// Slowest first. kBaseline runs on every x86-64 processor.
enum class LayerIsa : uint8_t { kBaseline, kAvx2, kAvx512 };

std::string_view Name(LayerIsa isa);  // "baseline", "avx2", "avx512"
// Whether this processor and its operating system run `isa`.
bool Supports(LayerIsa isa);
LayerIsa BestLayerIsa();
// Slowest first; always includes kBaseline.
std::vector<LayerIsa> SupportedLayerIsas();

// The kernels of a family for matrices of float and of uint16_t (BF16).
template <template <class T> class KernelsOf>
struct ByElement {
  KernelsOf<float> fp32;
  KernelsOf<uint16_t> bf16;

  template <class T>
  const KernelsOf<T>& of() const {
    if constexpr (std::is_same_v<T, float>) {
      return fp32;
    } else {
      return bf16;
    }
  }
};

// Of three tables, the one for `isa`.
template <class Table>
const Table& TableFor(LayerIsa isa, const Table& baseline, const Table& avx2, const Table& avx512) {
  if (isa == LayerIsa::kAvx512) return avx512;
  return isa == LayerIsa::kAvx2 ? avx2 : baseline;
}

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_LAYER_ISA_H_
