// Embedding and cross entropy on the CPU.
//
// Ownership: borrows the pool, owns scratch that grows to the largest request. Execution model: an
// operation is done when its call returns, and a token outside the vocabulary is refused before
// anything is written. Thread-safety: one call at a time.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CPU_TOKEN_OPS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CPU_TOKEN_OPS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/cpu/layers/row_groups.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/cpu/layers/token_kernels.h"
#include "kernels/ops/token_ops.h"

namespace nibble {

class CpuTokenOps : public TokenOps {
 public:
  // `isa` is one that the processor supports.
  explicit CpuTokenOps(ThreadPool& pool, cpu::LayerIsa isa = cpu::BestLayerIsa());

  absl::Status Forward(const EmbeddingForward& request) override;
  absl::Status Backward(const EmbeddingBackward& request) override;
  absl::Status Run(const CrossEntropy& request) override;

 private:
  // The index within its document of every row; valid until the next call.
  const int32_t* Positions(const SequenceLayout& layout);
  // table[keys[i]] += from(i), keys in [0, bound).
  void AddByKey(const ConstMatrix& from, const int32_t* keys, int64_t bound, float* table);

  ThreadPool& pool_;
  const cpu::TokenKernels& kernels_;
  cpu::RowGroups groups_;
  cpu::Scratch<int32_t> positions_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CPU_TOKEN_OPS_H_
