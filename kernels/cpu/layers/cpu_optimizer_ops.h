// The optimizer's update on the CPU.
//
// Ownership: borrows the pool, owns scratch that grows to the largest request. Execution model: an
// operation is done when its call returns. Thread-safety: one call at a time.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CPU_OPTIMIZER_OPS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CPU_OPTIMIZER_OPS_H_

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/cpu/layers/optimizer_kernels.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/optimizer_ops.h"

namespace nibble {

class CpuOptimizerOps : public OptimizerOps {
 public:
  // `isa` is one that the processor supports.
  explicit CpuOptimizerOps(ThreadPool& pool, cpu::LayerIsa isa = cpu::BestLayerIsa());

  absl::Status Run(const SumOfSquares& request) override;
  absl::Status Run(const AdamW& request) override;

 private:
  ThreadPool& pool_;
  const cpu::OptimizerKernels& kernels_;
  cpu::Scratch<double> partial_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CPU_OPTIMIZER_OPS_H_
