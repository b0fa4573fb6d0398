// Normalisation on the CPU.
//
// Ownership: borrows the pool, owns scratch that grows to the largest request. Execution model: an
// operation is done when its call returns. Thread-safety: one call at a time.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CPU_NORM_OPS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CPU_NORM_OPS_H_

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/column_sum_kernels.h"
#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/cpu/layers/norm_kernels.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/norm_ops.h"

namespace nibble {

class CpuNormOps : public NormOps {
 public:
  // `isa` is one that the processor supports.
  explicit CpuNormOps(ThreadPool& pool, cpu::LayerIsa isa = cpu::BestLayerIsa());

  absl::Status Forward(const AddNormForward& request) override;
  absl::Status Backward(const NormBackward& request) override;
  absl::Status Forward(const GatedNormForward& request) override;
  absl::Status Backward(const GatedNormBackward& request) override;

 private:
  ThreadPool& pool_;
  const cpu::NormKernels& kernels_;
  const cpu::ColumnSumKernels& sums_;
  cpu::Scratch<float> block_amax_, partial_, rows_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CPU_NORM_OPS_H_
