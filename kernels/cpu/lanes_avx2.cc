// The lane kernels for avx2; BUILD gives this file its compiler flags. Only headers whose functions
// are all forced inline may be included, or the linker could hand this file's instructions to
// others.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/lane_kernels.h"

namespace nibble::cpu {
namespace avx2 {
constexpr int kMaxHadamardSize = 128;
#include "kernels/cpu/lane_tile.inc"
// The next two build on the first.
#include "kernels/cpu/lane_amax.inc"
#include "kernels/cpu/lane_encode.inc"

using Widest = LaneVector<8>::F;
constexpr LaneKernels kKernels = {
    .name = "avx2",
    .amax_rows = Amax<Widest, false>,
    .amax_columns = Amax<Widest, true>,
    .group_amax_rows = GroupAmaxRows<Widest>,
    .group_amax_columns = GroupAmaxColumns<Widest>,
    .encode_rows = Encode<Widest, false>,
    .encode_columns = Encode<Widest, true>,
    .hadamard_rows = HadamardRows,
    .hadamard_columns = HadamardColumns<Widest>,
};
}  // namespace avx2

const LaneKernels* Avx2Kernels() {
  const bool supported = __builtin_cpu_supports("avx2");
  return supported ? &avx2::kKernels : nullptr;
}

}  // namespace nibble::cpu
