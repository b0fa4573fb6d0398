// All layer operations on the CPU, on the best instruction sets that the processor has.
//
// Ownership: borrows the pool, owns the families. Execution model: an operation is done when its
// call returns. Thread-safety: one call at a time, over all families: they share the pool.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CPU_LAYER_OPS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CPU_LAYER_OPS_H_

#include "common/thread_pool.h"
#include "kernels/cpu/layers/cpu_attention_ops.h"
#include "kernels/cpu/layers/cpu_elementwise_ops.h"
#include "kernels/cpu/layers/cpu_mamba_ops.h"
#include "kernels/cpu/layers/cpu_norm_ops.h"
#include "kernels/cpu/layers/cpu_optimizer_ops.h"
#include "kernels/cpu/layers/cpu_step_ops.h"
#include "kernels/cpu/layers/cpu_token_ops.h"
#include "kernels/ops/layer_ops.h"

namespace nibble {

class CpuLayerOps : public LayerOps {
 public:
  explicit CpuLayerOps(ThreadPool& pool);

  CpuNormOps& norm() override { return norm_; }
  CpuElementwiseOps& elementwise() override { return elementwise_; }
  CpuTokenOps& token() override { return token_; }
  CpuAttentionOps& attention() override { return attention_; }
  CpuMambaOps& mamba() override { return mamba_; }
  CpuOptimizerOps& optimizer() override { return optimizer_; }
  CpuStepOps& step() override { return step_; }

 private:
  CpuNormOps norm_;
  CpuElementwiseOps elementwise_;
  CpuTokenOps token_;
  CpuAttentionOps attention_;
  CpuMambaOps mamba_;
  CpuOptimizerOps optimizer_;
  CpuStepOps step_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CPU_LAYER_OPS_H_
