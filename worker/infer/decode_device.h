// The CPU as the device of decoding: as in training, with a GEMM engine for few rows.
//
// Ownership: owns its parts; outlives what borrows device(). Thread-safety: as
// kernels/ops/backend.h.
#ifndef NIBBLE_WORKER_INFER_DECODE_DEVICE_H_
#define NIBBLE_WORKER_INFER_DECODE_DEVICE_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/layers/cpu_layer_ops.h"
#include "kernels/cpu/layers/few_rows_gemm.h"
#include "kernels/gemm/cpu_gemm.h"
#include "worker/trainer/model/device.h"

namespace nibble {

class DecodeDevice {
 public:
  // `threads` as ThreadPool's.
  static absl::StatusOr<std::unique_ptr<DecodeDevice>> Create(int threads) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuBackend> backend,
                            CpuBackend::Create({.threads = threads}));
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuGemm> gemm, CpuGemm::Create(backend->pool(), {}));
    return std::unique_ptr<DecodeDevice>(new DecodeDevice(std::move(backend), std::move(gemm)));
  }

  Device device() { return {*backend_, few_rows_, ops_}; }
  Memory& memory() { return backend_->memory(); }
  ThreadPool& pool() { return backend_->pool(); }

 private:
  DecodeDevice(std::unique_ptr<CpuBackend> backend, std::unique_ptr<CpuGemm> gemm)
      : backend_(std::move(backend)),
        many_rows_(std::move(gemm)),
        few_rows_(backend_->pool(), *many_rows_),
        ops_(backend_->pool()) {}

  std::unique_ptr<CpuBackend> backend_;
  std::unique_ptr<CpuGemm> many_rows_;
  FewRowsGemm few_rows_;
  CpuLayerOps ops_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_DECODE_DEVICE_H_
