#include "worker/trainer/loop/cpu_device.h"

#include <utility>

namespace nibble {

absl::StatusOr<std::unique_ptr<CpuDevice>> CpuDevice::Create(int threads, size_t memory_bytes) {
  auto device = std::make_unique<CpuDevice>();
  absl::StatusOr<std::unique_ptr<CpuBackend>> backend =
      CpuBackend::Create({.threads = threads, .memory_bytes = memory_bytes});
  if (!backend.ok()) return backend.status();
  device->backend = *std::move(backend);
  absl::StatusOr<std::unique_ptr<CpuGemm>> gemm = CpuGemm::Create(device->backend->pool(), {});
  if (!gemm.ok()) return gemm.status();
  device->gemm = *std::move(gemm);
  device->ops = std::make_unique<CpuLayerOps>(device->backend->pool());
  return device;
}

}  // namespace nibble
