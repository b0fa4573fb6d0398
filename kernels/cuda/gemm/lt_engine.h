// Runs matmuls on cuBLASLt with one algorithm per problem, chosen when the problem is first seen
// and kept from then on: results of the same matmul have the same bits in every step.
//
// Which one: a stored choice, else, for a result of at least `least_measured` elements, the fastest
// of several that give the bits of the heuristics' first (lt_search.h), else that first one, which
// is the same in every process with the same library on the same kind of card. Results therefore
// have the same bits in every such process, whatever was measured. A measurement waits for the
// queue; matmuls of known problems only enqueue. Workspace: 64 MiB, allocated once.
//
// Ownership: owns the library's handle, the workspace and the descriptors; borrows the memory and
// the stream. Thread-safety: one thread at a time.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_LT_ENGINE_H_
#define NIBBLE_KERNELS_CUDA_GEMM_LT_ENGINE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/gemm/cublas_lt.h"
#include "kernels/cuda/gemm/lt_matmul.h"
#include "kernels/cuda/gemm/lt_problem.h"
#include "kernels/cuda/gemm/lt_search.h"

namespace nibble {

class LtEngine {
 public:
  struct Options {
    // Identifies the card in stored choices: "NVIDIA H200, 132 multiprocessors".
    std::string card;
    // Algorithms to measure per problem; 1: the heuristics' first, without measuring.
    int candidates = 1;
    // A smaller result is not measured: too few elements would show another order of additions.
    int64_t least_measured = 0;
    // The most that MeasureLt copies.
    int64_t copy_bytes = 0;
  };
  static absl::StatusOr<std::unique_ptr<LtEngine>> Create(CudaMemory& memory, cudaStream_t stream,
                                                          const CublasLt& library,
                                                          const Options& options);
  ~LtEngine();
  LtEngine(const LtEngine&) = delete;
  LtEngine& operator=(const LtEngine&) = delete;

  // Unimplemented if the library has no algorithm for the problem; FailedPrecondition if one would
  // have to be chosen while a graph is captured: kernels that have never run may be loaded then,
  // which a capture does not allow.
  absl::Status Run(const LtProblem& problem, const LtPointers& pointers);

  // All choices, one per line, below a head that names library and card.
  std::string Choices() const;
  // A sentence for each algorithm that was not measured because memory was short, since the last
  // call.
  std::vector<std::string> TakeNotices() { return std::exchange(notices_, {}); }
  // Uses these choices from now on, in place of own ones for the same problems. InvalidArgument
  // with the number of the line that is wrong; FailedPrecondition if they were made with another
  // library or on another kind of card, naming both: their algorithms may not exist here. Nothing
  // changes on an error.
  absl::Status LoadChoices(absl::string_view text);

  size_t version() const { return library_.GetVersion(); }

 private:
  struct Planned {
    LtMatmul matmul;
    LtChoice choice;
  };

  LtEngine(CudaMemory& memory, const CublasLt& library, const Options& options)
      : memory_(memory), library_(library), options_(options) {}

  std::string Head() const;
  absl::StatusOr<LtChoice> Choose(LtMatmul& matmul, const LtPointers& pointers);

  CudaMemory& memory_;
  const CublasLt& library_;
  const Options options_;
  LtQueue queue_;
  Buffer workspace_, zero_and_one_;
  // In order, so that the text is the same for the same choices.
  std::map<LtProblem, Planned> planned_;
  std::map<LtProblem, cublasLtMatmulAlgo_t> stored_;  // loaded, not yet used
  std::vector<std::string> notices_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_GEMM_LT_ENGINE_H_
