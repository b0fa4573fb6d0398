#include "bench/step/bench_device.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "bench/limits.h"
#include "common/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/layers/cpu_layer_ops.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/gemm/cpu_gemm.h"

namespace nibble::bench {
namespace {

constexpr int kRuns = 9;

// The median of the time that `run` takes in a queue of the device.
template <class Run>
absl::StatusOr<double> MedianSeconds(Backend& backend, Queue& queue, Run run) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Event> begin, backend.NewEvent());
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Event> end, backend.NewEvent());
  std::vector<double> seconds;
  for (int i = 0; i < kRuns + 2; ++i) {
    NIBBLE_RETURN_IF_ERROR(queue.Record(*begin));
    NIBBLE_RETURN_IF_ERROR(run());
    NIBBLE_RETURN_IF_ERROR(queue.Record(*end));
    NIBBLE_ASSIGN_OR_RETURN(const double taken, backend.SecondsBetween(*begin, *end));
    if (i >= 2) seconds.push_back(taken);
  }
  return Median(seconds);
}

class CpuBenchDevice : public BenchDevice {
 public:
  CpuBenchDevice(std::unique_ptr<CpuBackend> backend, std::unique_ptr<CpuGemm> gemm)
      : backend_(std::move(backend)), gemm_(std::move(gemm)), ops_(backend_->pool()) {}

  Device device() override { return {*backend_, *gemm_, ops_}; }
  size_t peak_bytes() const override { return backend_->memory().meter().peak(); }
  absl::StatusOr<double> CopyRate() override {
    constexpr int64_t kBytes = int64_t{256} << 20;
    CopyLimit limit(backend_->pool(), kBytes);
    std::vector<double> seconds;
    for (int i = 0; i < kRuns; ++i) seconds.push_back(limit.Run());
    return kBytes / Median(seconds);
  }

 private:
  int64_t gemm_size() const override { return 2048; }

  const std::unique_ptr<CpuBackend> backend_;
  const std::unique_ptr<CpuGemm> gemm_;
  CpuLayerOps ops_;
};

class CudaBenchDevice : public BenchDevice {
 public:
  explicit CudaBenchDevice(std::unique_ptr<CudaDevice> card) : card_(std::move(card)) {}

  Device device() override { return {card_->backend(), card_->gemm(), card_->ops()}; }
  size_t peak_bytes() const override { return card_->meter().peak(); }
  absl::StatusOr<double> CopyRate() override {
    constexpr size_t kBytes = size_t{1} << 30;
    NIBBLE_ASSIGN_OR_RETURN(const Buffer from, card_->backend().memory().Allocate(kBytes));
    NIBBLE_ASSIGN_OR_RETURN(const Buffer to, card_->backend().memory().Allocate(kBytes));
    NIBBLE_ASSIGN_OR_RETURN(const double seconds,
                            MedianSeconds(card_->backend(), card_->backend().compute(), [&] {
                              return card_->Copy(to.data(), from.data(), kBytes);
                            }));
    return 2.0 * kBytes / seconds;
  }

 private:
  int64_t gemm_size() const override { return 8192; }

  const std::unique_ptr<CudaDevice> card_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BenchDevice>> BenchDevice::Create(const std::string& name,
                                                                 int threads) {
  if (name == "cuda") {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> card, CudaDevice::Create({}));
    return std::make_unique<CudaBenchDevice>(std::move(card));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuBackend> backend,
                          CpuBackend::Create({.threads = threads}));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuGemm> gemm, CpuGemm::Create(backend->pool(), {}));
  return std::make_unique<CpuBenchDevice>(std::move(backend), std::move(gemm));
}

absl::StatusOr<double> BenchDevice::GemmRate() {
  const int64_t size = gemm_size();
  const Device on = device();
  // Random values: a GEMM of equal values takes less power and is faster.
  Buffer tensors[3];
  for (Buffer& tensor : tensors) {
    NIBBLE_ASSIGN_OR_RETURN(tensor, on.memory().Allocate(static_cast<size_t>(size * size) * 2));
  }
  NIBBLE_ASSIGN_OR_RETURN(const Buffer values,
                          on.memory().Allocate(static_cast<size_t>(size * size) * 4));
  for (int i = 0; i < 2; ++i) {
    NIBBLE_RETURN_IF_ERROR(
        on.ops.elementwise().Run(FillInitial{.init = Init::kNormal,
                                             .scale = 1,
                                             .random = {.seed = static_cast<uint64_t>(i)},
                                             .n = size * size,
                                             .out = values.data<float>()}));
    NIBBLE_RETURN_IF_ERROR(on.ops.elementwise().Run(
        Cast{.from = ConstMatrix::Of(values.data<float>(), size, size),
             .to = MutableMatrix::OfBf16(tensors[i].data<uint16_t>(), size, size)}));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      const double seconds, MedianSeconds(on.backend, on.backend.compute(), [&] {
        return on.gemm.Gemm(Fprop(ConstMatrix::OfBf16(tensors[0].data<uint16_t>(), size, size),
                                  ConstMatrix::OfBf16(tensors[1].data<uint16_t>(), size, size),
                                  MutableMatrix::OfBf16(tensors[2].data<uint16_t>(), size, size)));
      }));
  return 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size) /
         seconds;
}

absl::StatusOr<double> BenchDevice::ToHostRate() {
  constexpr size_t kBytes = size_t{256} << 20;
  Backend& backend = device().backend;
  NIBBLE_ASSIGN_OR_RETURN(const Buffer from, backend.memory().Allocate(kBytes));
  NIBBLE_ASSIGN_OR_RETURN(const Buffer to, backend.pinned().Allocate(kBytes));
  Queue& transfers = backend.transfers();
  NIBBLE_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(backend, transfers, [&] {
                            return transfers.CopyOut(to.data(), from.data(), kBytes);
                          }));
  return kBytes / seconds;
}

}  // namespace nibble::bench
