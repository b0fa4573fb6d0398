// The lane kernels for avx2; BUILD gives this file its compiler flags. Only headers whose functions
// are all forced inline may be included, or the linker could hand this file's instructions to others.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/lane_kernels.h"

namespace nibble::cpu {
namespace avx2 {
constexpr char kName[] = "avx2";
using Widest = LaneVector<8>::F;
#include "kernels/cpu/lane_table.inc"
}  // namespace avx2

const LaneKernels* Avx2Kernels() {
  return __builtin_cpu_supports("avx2") ? &avx2::kKernels : nullptr;
}

}  // namespace nibble::cpu
