#include "kernels/cpu/layers/panel_gemm.h"

#include "kernels/cpu/layers/panel_gemm_amx.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace nibble::cpu {
namespace {

#ifdef __x86_64__
// Linux grants the 8 KiB of tile registers per process and on request (arch_prctl(2)); it refuses
// if it is too old or a signal stack of the process is too small to save them.
bool AskForTiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool ProcessorHasAmxBf16() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAmxBf16Bit = 1u << 22, kAmxTileBit = 1u << 24;
  if ((d & kAmxBf16Bit) == 0 || (d & kAmxTileBit) == 0) return false;
  // The operating system saves tile configuration and data (XCR0 bits 17 and 18).
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low >> 17 & 3) == 3;
}
#endif

std::vector<PanelIsa> Detect() {
  std::vector<PanelIsa> isas = {PanelIsa::kBaseline};
#ifdef __x86_64__
  if (Supports(LayerIsa::kAvx2)) isas.push_back(PanelIsa::kAvx2);
  if (Supports(LayerIsa::kAvx512)) {
    isas.push_back(PanelIsa::kAvx512);
    if (__builtin_cpu_supports("avx512bf16")) {
      isas.push_back(PanelIsa::kAvx512Bf16);
      if (ProcessorHasAmxBf16() && AskForTiles()) isas.push_back(PanelIsa::kAmx);
    }
  }
#endif
  return isas;
}

bool Supported(PanelIsa isa) {
  for (const PanelIsa known : SupportedPanelIsas()) {
    if (known == isa) return true;
  }
  return false;
}

bool HasTiles() {
  static const bool has = Supported(PanelIsa::kAmx);
  return has;
}

// Open scopes of this thread.
thread_local int scopes = 0;

}  // namespace

LayerIsa VectorIsaOf(PanelIsa isa) {
  if (isa == PanelIsa::kBaseline) return LayerIsa::kBaseline;
  return isa == PanelIsa::kAvx2 ? LayerIsa::kAvx2 : LayerIsa::kAvx512;
}

std::string_view PanelIsaName(PanelIsa isa) {
  switch (isa) {
    case PanelIsa::kBaseline:
      return "baseline";
    case PanelIsa::kAvx2:
      return "avx2";
    case PanelIsa::kAvx512:
      return "avx512";
    case PanelIsa::kAvx512Bf16:
      return "avx512-bf16";
    case PanelIsa::kAmx:
      return "amx";
  }
  return "unknown";
}

const std::vector<PanelIsa>& SupportedPanelIsas() {
  static const std::vector<PanelIsa> isas = Detect();
  return isas;
}

PanelIsa BestPanelIsa() { return SupportedPanelIsas().back(); }

template <class T>
const PanelGemm<T>* PanelGemmFor(PanelIsa isa) {
  if (!Supported(isa)) return nullptr;
  if constexpr (std::is_same_v<T, uint16_t>) {
    if (isa == PanelIsa::kAmx) return &PanelGemm<T>::amx;
  }
  return &TableFor<PanelGemm, T>(isa);
}
template const PanelGemm<uint16_t>* PanelGemmFor(PanelIsa isa);
template const PanelGemm<float>* PanelGemmFor(PanelIsa isa);

PanelThreadScope::PanelThreadScope() {
  if (HasTiles() && scopes++ == 0) amx::LoadTiles();
}

PanelThreadScope::~PanelThreadScope() {
  if (HasTiles() && --scopes == 0) amx::ReleaseTiles();
}

}  // namespace nibble::cpu
