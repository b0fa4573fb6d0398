// Finds the algorithm of a matmul: the library's heuristics propose some, of which those whose sums
// have a fixed order are candidates. The proposals depend on the problem, the library and the card
// alone; measured times differ from run to run. The fastest is therefore taken among those that
// give the bits of the heuristics' first: whichever it is, results are the same. Algorithms that
// only tile the result differently add in the same order; those that split K do not.
//
// Ownership: borrows everything. Thread-safety: one thread at a time.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_LT_SEARCH_H_
#define NIBBLE_KERNELS_CUDA_GEMM_LT_SEARCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/gemm/cublas_lt.h"
#include "kernels/cuda/gemm/lt_matmul.h"

namespace nibble {

struct LtChoice {
  cublasLtMatmulAlgo_t algorithm = {};
  // Median times in milliseconds, of this one and of the heuristics' first; 0: not measured.
  float ms = 0;
  float first_ms = 0;
  int place = 0;                // in the order of the heuristics
  int measured = 0;             // candidates with the first's bits
  int others = 0;               // with other bits
  std::string short_of_memory;  // why there was no measurement although it was asked for; or empty
};

// Up to `count` algorithms in the heuristics' order. Those that split K keep FP32 partial sums in
// the workspace and add them in a pass of its own; the library's other reductions round partial
// sums to C's type. Unimplemented naming the problem if there is none.
absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> LtCandidates(const CublasLt& library,
                                                               const LtMatmul& matmul,
                                                               const LtQueue& queue, int count);

// Whether an algorithm is known to add in one order in every run, with FP32 partial sums.
bool HasFixedOrder(const CublasLt& library, const cublasLtMatmulAlgo_t& algorithm);

// Runs every candidate several times, in turns, and returns the fastest of those whose result has
// the bits of the first's; a later one must be faster by more than half a percent. Returns the
// first, unmeasured, if the result tells too little about the order of its additions, because most
// of it is zero, or, with `short_of_memory`, if memory is short. Waits for the queue. C is
// overwritten, but not if the problem adds to it: then the runs compute its first rows, of about
// `most_copied` bytes, in a copy that `memory` provides, so that measuring takes little memory
// beside what a model was planned to take.
absl::StatusOr<LtChoice> MeasureLt(const CublasLt& library, LtMatmul& whole,
                                   const LtPointers& pointers, const LtQueue& queue,
                                   CudaMemory& memory, int64_t most_copied,
                                   const std::vector<cublasLtMatmulAlgo_t>& candidates);

// "algorithm 66, tile 20, stages 36, 1 part" for people.
std::string Describe(const CublasLt& library, const cublasLtMatmulAlgo_t& algorithm);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_GEMM_LT_SEARCH_H_
