#include "kernels/cpu/layers/layer_isa.h"

namespace nibble::cpu {

std::string_view Name(LayerIsa isa) {
  switch (isa) {
    case LayerIsa::kBaseline:
      return "baseline";
    case LayerIsa::kAvx2:
      return "avx2";
    case LayerIsa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

// The features that isa.bzl's flags require.
bool Supports(LayerIsa isa) {
  switch (isa) {
    case LayerIsa::kBaseline:
      return true;
    case LayerIsa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case LayerIsa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("fma");
  }
  return false;
}

LayerIsa BestLayerIsa() {
  static const LayerIsa best = SupportedLayerIsas().back();
  return best;
}

std::vector<LayerIsa> SupportedLayerIsas() {
  std::vector<LayerIsa> isas;
  for (const LayerIsa isa : {LayerIsa::kBaseline, LayerIsa::kAvx2, LayerIsa::kAvx512}) {
    if (Supports(isa)) isas.push_back(isa);
  }
  return isas;
}

}  // namespace nibble::cpu
