// The lane kernels for avx512; BUILD gives this file its compiler flags. Only headers whose
// functions are all forced inline may be included, or the linker could hand this file's
// instructions to others.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/lane_kernels.h"

namespace nibble::cpu {
namespace avx512 {
constexpr int kMaxHadamardSize = 128;
#include "kernels/cpu/lane_tile.inc"
// The next two build on the first.
#include "kernels/cpu/lane_amax.inc"
#include "kernels/cpu/lane_encode.inc"

using Widest = LaneVector<16>::F;
constexpr LaneKernels kKernels = {
    .name = "avx512",
    .amax_rows = Amax<Widest, false>,
    .amax_columns = Amax<Widest, true>,
    .group_amax_rows = GroupAmaxRows<Widest>,
    .group_amax_columns = GroupAmaxColumns<Widest>,
    .encode_rows = Encode<Widest, false>,
    .encode_columns = Encode<Widest, true>,
    .hadamard_rows = HadamardRows,
    .hadamard_columns = HadamardColumns<Widest>,
};
}  // namespace avx512

const LaneKernels* Avx512Kernels() {
  const bool supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return supported ? &avx512::kKernels : nullptr;
}

}  // namespace nibble::cpu
