// The device that a model runs on: one backend's queue and the operations that enqueue on it.
//
// Ownership: borrows everything. Thread-safety: one thread at a time, as Backend.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_DEVICE_H_
#define NIBBLE_WORKER_TRAINER_MODEL_DEVICE_H_

#include "kernels/gemm/gemm.h"
#include "kernels/ops/backend.h"
#include "kernels/ops/layer_ops.h"

namespace nibble {

struct Device {
  Backend& backend;
  GemmEngine& gemm;
  LayerOps& ops;

  Memory& memory() const { return backend.memory(); }
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_DEVICE_H_
