#include "worker/trainer/loop/train_device.h"

#include <cstddef>
#include <utility>

#include "common/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/layers/cpu_layer_ops.h"
#include "kernels/gemm/cpu_gemm.h"

namespace nibble {
namespace {

class CpuTrainDevice : public TrainDevice {
 public:
  CpuTrainDevice(std::unique_ptr<CpuBackend> backend, std::unique_ptr<CpuGemm> gemm)
      : backend_(std::move(backend)), gemm_(std::move(gemm)), ops_(backend_->pool()) {}

  Device device() override { return {*backend_, *gemm_, ops_}; }
  int threads() const override { return backend_->pool().threads(); }
  absl::StatusOr<std::unique_ptr<Collective>> Ranks(std::unique_ptr<Collective> hosts) override {
    return hosts;  // tensors are in the hosts' memory
  }

 private:
  const std::unique_ptr<CpuBackend> backend_;
  const std::unique_ptr<CpuGemm> gemm_;
  CpuLayerOps ops_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainDevice>> MakeDevice(const JobSpec& spec) {
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<CpuBackend> backend,
      CpuBackend::Create({.threads = static_cast<int>(spec.resources.threads),
                          .memory_bytes = static_cast<size_t>(spec.resources.memory_mib) << 20}));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuGemm> gemm, CpuGemm::Create(backend->pool(), {}));
  return std::make_unique<CpuTrainDevice>(std::move(backend), std::move(gemm));
}

}  // namespace nibble
