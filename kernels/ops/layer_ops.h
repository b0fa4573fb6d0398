// The operations of a model besides quantisation and matmuls, by family. A new mixer adds a family
// and its accessor here.
//
// Ownership: families belong to the object. Execution model, thread-safety: as Backend, in whose
// queue they run.
#ifndef NIBBLE_KERNELS_OPS_LAYER_OPS_H_
#define NIBBLE_KERNELS_OPS_LAYER_OPS_H_

#include "kernels/ops/attention_ops.h"
#include "kernels/ops/elementwise_ops.h"
#include "kernels/ops/mamba_ops.h"
#include "kernels/ops/norm_ops.h"
#include "kernels/ops/optimizer_ops.h"
#include "kernels/ops/step_ops.h"
#include "kernels/ops/token_ops.h"

namespace nibble {

class LayerOps {
 public:
  virtual ~LayerOps() = default;
  virtual NormOps& norm() = 0;
  virtual ElementwiseOps& elementwise() = 0;
  virtual TokenOps& token() = 0;
  virtual AttentionOps& attention() = 0;
  virtual MambaOps& mamba() = 0;
  virtual OptimizerOps& optimizer() = 0;
  virtual StepOps& step() = 0;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_LAYER_OPS_H_
