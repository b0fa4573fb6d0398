#include "kernels/cpu/layers/scan_kernels.h"

#include <cstdint>

#include "kernels/cpu/layers/scan_decay.h"
#include "kernels/cpu/layers/scan_mix.h"
#include "kernels/cpu/layers/scan_rows.h"
#include "kernels/cpu/layers/vec.h"

namespace nibble::cpu {

template <class T>
const ScanKernels<T> ScanKernels<T>::NIBBLE_ISA = {
    .decays = Decays<T>,
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
    .round_rows = RoundRows<T>,
};
#if !defined(__AVX512BF16__)
template const ScanKernels<float> ScanKernels<float>::NIBBLE_ISA;
#endif
template const ScanKernels<uint16_t> ScanKernels<uint16_t>::NIBBLE_ISA;

}  // namespace nibble::cpu
