// The lane kernels for avx512; BUILD gives this file its compiler flags. Only headers whose functions
// are all forced inline may be included, or the linker could hand this file's instructions to others.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/lane_kernels.h"

namespace nibble::cpu {
namespace avx512 {
constexpr char kName[] = "avx512";
using Widest = LaneVector<16>::F;
#include "kernels/cpu/lane_table.inc"
}  // namespace avx512

const LaneKernels* Avx512Kernels() {
  const bool supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return supported ? &avx512::kKernels : nullptr;
}

}  // namespace nibble::cpu
