#include "kernels/cpu/layers/vec.h"

#include <cstdint>

#include "kernels/cpu/layers/scan_decay.h"
#include "kernels/cpu/layers/scan_kernels.h"
#include "kernels/cpu/layers/scan_mix.h"
#include "kernels/cpu/layers/scan_rows.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

template <class T>
constexpr ScanKernels<T> Table() {
  return {.decays = Decays<T>,
          .edges = Edges,
          .scale_pack = ScalePack<T>,
          .scale_rows = ScaleRows<T>,
          .carry_packed = CarryPacked<T>,
          .carry_rows = CarryRows<T>,
          .dot = Dot<T>,
          .mix = Mix<T>,
          .mix_backward = MixBackward<T>,
          .finish_y = FinishY<T>,
          .finish_dx = FinishDx<T>,
          .finish_dc = FinishDc<T>,
          .add = Add,
          .round_rows = RoundRows<T>};
}

}  // namespace

#if !defined(__AVX512BF16__)
const ScanKernels<float> kScanFp32 = Table<float>();
#endif
const ScanKernels<uint16_t> kScanBf16 = Table<uint16_t>();

}  // namespace NIBBLE_ISA
}  // namespace nibble::cpu
