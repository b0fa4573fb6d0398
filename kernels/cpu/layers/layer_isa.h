// The instruction set of the layer kernels. Each family of kernels is compiled once per set
// (isa.bzl) and has a table of functions for each, a static member with the name of the set.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_LAYER_ISA_H_
#define NIBBLE_KERNELS_CPU_LAYERS_LAYER_ISA_H_

#include <cstdint>
#include <string_view>
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

// Selects one of three tables.
template <class Table>
const Table& TableFor(LayerIsa isa, const Table& baseline, const Table& avx2, const Table& avx512) {
  if (isa == LayerIsa::kAvx512) return avx512;
  return isa == LayerIsa::kAvx2 ? avx2 : baseline;
}

// The kernels of a family for `isa`, which the processor supports: a member of `Kernels`, which its
// *_kernels.cc defines.
template <class Kernels>
const Kernels& TableFor(LayerIsa isa) {
  return TableFor(isa, Kernels::baseline, Kernels::avx2, Kernels::avx512);
}

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_LAYER_ISA_H_
