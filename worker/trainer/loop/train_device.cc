#include "worker/trainer/loop/train_device.h"

#include <cstddef>
#include <string>
#include <utility>

#include "common/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/layers/cpu_layer_ops.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/nccl/nccl_group.h"
#include "kernels/gemm/cpu_gemm.h"

namespace nibble {
namespace {

class CpuTrainDevice : public TrainDevice {
 public:
  CpuTrainDevice(std::unique_ptr<CpuBackend> backend, std::unique_ptr<CpuGemm> gemm)
      : backend_(std::move(backend)), gemm_(std::move(gemm)), ops_(backend_->pool()) {}

  Device device() override { return {*backend_, *gemm_, ops_}; }
  int threads() const override { return backend_->pool().threads(); }
  absl::StatusOr<std::unique_ptr<Collective>> Ranks(std::unique_ptr<Collective> hosts,
                                                    const HostJoiner&) override {
    return hosts;  // tensors are in the hosts' memory
  }

 private:
  const std::unique_ptr<CpuBackend> backend_;
  const std::unique_ptr<CpuGemm> gemm_;
  CpuLayerOps ops_;
};

class CudaTrainDevice : public TrainDevice {
 public:
  CudaTrainDevice(std::unique_ptr<CudaDevice> card, const CardRanks& ranks)
      : card_(std::move(card)), ranks_(ranks) {}

  Device device() override { return {card_->backend(), card_->gemm(), card_->ops()}; }
  int threads() const override { return 1; }
  absl::StatusOr<std::unique_ptr<Collective>> Ranks(std::unique_ptr<Collective> hosts,
                                                    const HostJoiner& join) override {
    return ConnectCards(*card_, std::move(hosts), join, ranks_);
  }

 private:
  const std::unique_ptr<CudaDevice> card_;
  const CardRanks ranks_;
};

CardRanks RanksOf(const ResourceSpec& resources) {
  CardRanks ranks;
  switch (resources.collectives) {
    case JobCollectives::kAuto:
      ranks.transport = CardTransport::kAuto;
      break;
    case JobCollectives::kNccl:
      ranks.transport = CardTransport::kNccl;
      break;
    case JobCollectives::kStaged:
      ranks.transport = CardTransport::kStaged;
      break;
  }
  ranks.sums =
      resources.reduction == JobReduction::kNccl ? NcclSums::kLibrary : NcclSums::kRankOrder;
  switch (resources.exchange) {
    case JobExchange::kAuto:
      ranks.exchange = CardExchange::kAuto;
      break;
    case JobExchange::kCopies:
      ranks.exchange = CardExchange::kCopies;
      break;
    case JobExchange::kNccl:
      ranks.exchange = CardExchange::kNccl;
      break;
  }
  return ranks;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainDevice>> MakeDevice(const JobSpec& spec, int local_rank) {
  const size_t memory = static_cast<size_t>(spec.resources.memory_mib) << 20;
  if (spec.resources.device == JobDevice::kCuda) {
    NIBBLE_ASSIGN_OR_RETURN(const int cards, CudaDevice::Count());
    NIBBLE_ASSIGN_OR_RETURN(
        std::unique_ptr<CudaDevice> card,
        CudaDevice::Create({.index = cards == 0 ? 0 : local_rank % cards,
                            .memory_bytes = memory,
                            .native = spec.training.products != JobProducts::kEmulated}));
    return std::make_unique<CudaTrainDevice>(std::move(card), RanksOf(spec.resources));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuBackend> backend,
                          CpuBackend::Create({.threads = static_cast<int>(spec.resources.threads),
                                              .memory_bytes = memory}));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuGemm> gemm, CpuGemm::Create(backend->pool(), {}));
  return std::make_unique<CpuTrainDevice>(std::move(backend), std::move(gemm));
}

}  // namespace nibble
