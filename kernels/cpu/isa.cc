#include "kernels/cpu/isa.h"

#include "absl/strings/str_cat.h"

namespace nibble::cpu {
namespace {

// Null if this processor lacks a feature that BUILD's flags require.
const LaneKernels* Find(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return &LaneKernels::scalar;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") ? &LaneKernels::avx2 : nullptr;
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                 ? &LaneKernels::avx512
                 : nullptr;
  }
  return nullptr;
}

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (Find(isa) != nullptr) isas.push_back(isa);
  }
  return isas;
}

absl::StatusOr<const LaneKernels*> KernelsFor(Isa isa) {
  if (const LaneKernels* kernels = Find(isa)) return kernels;
  return absl::FailedPreconditionError(
      absl::StrCat("instruction set ", std::string(IsaName(isa)),
                   " is not available; the best of this processor is ",
                   std::string(IsaName(SupportedIsas().back()))));
}

}  // namespace nibble::cpu
