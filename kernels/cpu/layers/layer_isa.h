// Which instruction set the layer kernels run on. Each family of kernels is compiled once per set
// (isa.bzl) and brings a table of functions for every one of them.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_LAYER_ISA_H_
#define NIBBLE_KERNELS_CPU_LAYERS_LAYER_ISA_H_

#include <cstdint>
#include <string_view>
#include <vector>

namespace nibble::cpu {

// Slowest first. kBaseline: what every x86-64 processor has.
enum class LayerIsa : uint8_t { kBaseline, kAvx2, kAvx512 };

std::string_view Name(LayerIsa isa);  // "baseline", "avx2", "avx512"
// Whether this processor and its operating system run `isa`.
bool Supports(LayerIsa isa);
LayerIsa BestLayerIsa();
// Slowest first; kBaseline is always there.
std::vector<LayerIsa> SupportedLayerIsas();

// Of three tables, the one for `isa`, which the caller knows to be supported.
template <class Table>
const Table& TableFor(LayerIsa isa, const Table& baseline, const Table& avx2, const Table& avx512) {
  if (isa == LayerIsa::kAvx512) return avx512;
  return isa == LayerIsa::kAvx2 ? avx2 : baseline;
}

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_LAYER_ISA_H_
