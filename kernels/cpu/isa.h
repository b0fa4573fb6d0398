// Which instruction set the CPU quantisers use. The choice changes speed, never a bit.
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
// Those this build has and this processor runs, slowest first; kScalar is always there.
std::vector<Isa> SupportedIsas();
// FailedPrecondition naming the processor's best where `isa` is not supported.
absl::StatusOr<const LaneKernels*> KernelsFor(Isa isa);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_ISA_H_
