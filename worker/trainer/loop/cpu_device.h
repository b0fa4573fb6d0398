// The CPU as a device: its queue, its GEMM engine and its layer kernels.
//
// Ownership: owns them. Thread-safety: as kernels/ops/backend.h.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_CPU_DEVICE_H_
#define NIBBLE_WORKER_TRAINER_LOOP_CPU_DEVICE_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/layers/cpu_layer_ops.h"
#include "kernels/gemm/cpu_gemm.h"
#include "worker/trainer/model/device.h"

namespace nibble {

struct CpuDevice {
  // `threads`: 0: one per processor. `memory_bytes`: the bound on tensor memory; 0: none.
  static absl::StatusOr<std::unique_ptr<CpuDevice>> Create(int threads, size_t memory_bytes);
  Device device() { return {*backend, *gemm, *ops}; }

  std::unique_ptr<CpuBackend> backend;
  std::unique_ptr<CpuGemm> gemm;
  std::unique_ptr<CpuLayerOps> ops;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_CPU_DEVICE_H_
