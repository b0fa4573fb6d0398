// The operations of a model besides quantisation and matmuls, by family. A new mixer adds a family
// and its accessor here.
//
// ScratchBytes() of a family is what it keeps of the device's memory to run such a request, besides
// what the request names; of the request it reads sizes, strides and addresses. A family keeps the
// most that its requests needed so far. Scratch of a few kilobytes is not counted. CPU operations
// keep host memory, which no plan counts.
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
