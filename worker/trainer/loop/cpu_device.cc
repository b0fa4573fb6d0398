#include "worker/trainer/loop/cpu_device.h"

#include <utility>

#include "common/status_macros.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<CpuDevice>> CpuDevice::Create(int threads, size_t memory_bytes) {
  auto device = std::make_unique<CpuDevice>();
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuBackend> backend,
                          CpuBackend::Create({.threads = threads, .memory_bytes = memory_bytes}));
  device->backend = std::move(backend);
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuGemm> gemm,
                          CpuGemm::Create(device->backend->pool(), {}));
  device->gemm = std::move(gemm);
  device->ops = std::make_unique<CpuLayerOps>(device->backend->pool());
  return device;
}

}  // namespace nibble
