// The lane kernels for scalar; BUILD gives this file its compiler flags. Only headers whose functions
// are all forced inline may be included, or the linker could hand this file's instructions to others.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/lane_kernels.h"

namespace nibble::cpu {
namespace scalar {
constexpr char kName[] = "scalar";
using Widest = float;
#include "kernels/cpu/lane_table.inc"
}  // namespace scalar

const LaneKernels* ScalarKernels() { return &scalar::kKernels; }

}  // namespace nibble::cpu
