// Element-wise operations on the CPU.
//
// Ownership: borrows the pool, owns scratch that grows to the largest request. Execution model: an
// operation is done when its call returns. Thread-safety: one call at a time.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CPU_ELEMENTWISE_OPS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CPU_ELEMENTWISE_OPS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/column_sum_kernels.h"
#include "kernels/cpu/layers/elementwise_kernels.h"
#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/elementwise_ops.h"

namespace nibble {

class CpuElementwiseOps : public ElementwiseOps {
 public:
  // `isa` is one that the processor supports.
  explicit CpuElementwiseOps(ThreadPool& pool, cpu::LayerIsa isa = cpu::BestLayerIsa());

  absl::Status Forward(const ActivationForward& request) override;
  absl::Status Backward(const ActivationBackward& request) override;
  absl::Status Forward(const BiasForward& request) override;
  absl::Status Backward(const BiasBackward& request) override;
  absl::Status Run(const Cast& request) override;
  absl::Status Run(const Accumulate& request) override;
  absl::Status Run(const CopyParts& request) override;
  absl::Status Run(const FillInitial& request) override;
  absl::Status Zero(void* data, int64_t bytes) override;

 private:
  // Runs every patch; `amax`, if not null, receives the largest of their results.
  void RunPatches(const cpu::Patches& patches, float* amax,
                  absl::FunctionRef<float(const cpu::BlockPatch&)> run);

  // `kernels`: by the types of `from` and `to`.
  template <class Request, class Kernel>
  absl::Status RunFlat(const Request& request, Kernel (&kernels)[2][2]);

  ThreadPool& pool_;
  const cpu::ElementwiseKernels& kernels_;
  const cpu::ColumnSumKernels& sums_;
  cpu::Scratch<float> patch_amax_, partial_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CPU_ELEMENTWISE_OPS_H_
