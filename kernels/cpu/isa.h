// The instruction set of the CPU quantisers. The choice affects speed, never a bit.
//
// Thread-safety: pure.
#ifndef NIBBLE_KERNELS_CPU_ISA_H_
#define NIBBLE_KERNELS_CPU_ISA_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/lane_kernels.h"

namespace nibble::cpu {

enum class Isa : uint8_t { kScalar, kAvx2, kAvx512 };

std::string_view IsaName(Isa isa);
// The instruction sets that this build has and this processor supports, slowest first; kScalar
// always.
std::vector<Isa> SupportedIsas();
// FailedPrecondition naming the processor's best if `isa` is not supported.
absl::StatusOr<const LaneKernels*> KernelsFor(Isa isa);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_ISA_H_
