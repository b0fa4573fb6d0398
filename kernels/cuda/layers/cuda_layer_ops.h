// All operations of a model on a CUDA card.
//
// Ownership: owns the families and their scratch; borrows the backend. Thread-safety: as Backend.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_CUDA_LAYER_OPS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_CUDA_LAYER_OPS_H_

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/layers/cuda_attention_ops.h"
#include "kernels/cuda/layers/cuda_elementwise_ops.h"
#include "kernels/cuda/layers/cuda_mamba_ops.h"
#include "kernels/cuda/layers/cuda_norm_ops.h"
#include "kernels/cuda/layers/cuda_optimizer_ops.h"
#include "kernels/cuda/layers/cuda_step_ops.h"
#include "kernels/cuda/layers/cuda_token_ops.h"
#include "kernels/ops/layer_ops.h"

namespace nibble {

class CudaLayerOps : public LayerOps {
 public:
  explicit CudaLayerOps(CudaBackend& backend)
      : norm_(backend),
        elementwise_(backend),
        token_(backend),
        attention_(backend),
        mamba_(backend),
        optimizer_(backend),
        step_(backend) {}

  NormOps& norm() override { return norm_; }
  ElementwiseOps& elementwise() override { return elementwise_; }
  TokenOps& token() override { return token_; }
  AttentionOps& attention() override { return attention_; }
  MambaOps& mamba() override { return mamba_; }
  OptimizerOps& optimizer() override { return optimizer_; }
  StepOps& step() override { return step_; }

 private:
  CudaNormOps norm_;
  CudaElementwiseOps elementwise_;
  CudaTokenOps token_;
  CudaAttentionOps attention_;
  CudaMambaOps mamba_;
  CudaOptimizerOps optimizer_;
  CudaStepOps step_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_CUDA_LAYER_OPS_H_
