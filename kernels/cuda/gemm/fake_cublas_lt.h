// A cuBLASLt in plain C++ for tests without a GPU: it computes what the descriptors say, on host
// memory, in float64, and refuses what the manual excludes on a compute capability. It tests the
// engine's descriptors, layouts and scales, but not whether the library accepts them.
//
// Thread-safety: one thread at a time; one capability per process at a time.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_FAKE_CUBLAS_LT_H_
#define NIBBLE_KERNELS_CUDA_GEMM_FAKE_CUBLAS_LT_H_

#include <cstdint>
#include <map>
#include <set>

#include "kernels/cuda/gemm/cublas_lt.h"

namespace nibble {

struct FakeLtState {
  int capability = 90;
  size_t version = 130100;
  int64_t heuristics = 0;                // calls
  std::map<uint64_t, int64_t> launches;  // by algorithm: 100 and up, 101 must never run
  std::map<uint64_t, double> ms;         // what a launch takes of the emulated time
  std::set<uint64_t> other_order;        // algorithms whose results differ in their last bits
};
FakeLtState& FakeLt();

// Rounds to C's type before it adds C, as some algorithms do. Proposes algorithms 100 to 103: 101
// reduces in place, 102 splits K with a pass of its own.
const CublasLt& FakeCublasLt();

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_GEMM_FAKE_CUBLAS_LT_H_
