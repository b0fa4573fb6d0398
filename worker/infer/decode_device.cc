#include "worker/infer/decode_device.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/layers/cpu_layer_ops.h"
#include "kernels/cpu/layers/few_rows_gemm.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/gemm/cpu_gemm.h"

namespace nibble {
namespace {

constexpr int kCopies = 5;
constexpr int64_t kMostCopied = int64_t{1} << 28;

class CpuDecodeDevice : public DecodeDevice {
 public:
  CpuDecodeDevice(std::unique_ptr<CpuBackend> backend, std::unique_ptr<CpuGemm> gemm)
      : backend_(std::move(backend)),
        many_rows_(std::move(gemm)),
        few_rows_(backend_->pool(), *many_rows_),
        ops_(backend_->pool()) {}

  Device device() override { return {*backend_, few_rows_, ops_}; }
  ThreadPool* pool() override { return &backend_->pool(); }

  absl::StatusOr<double> CopySpeed(int64_t bytes) override {
    constexpr int64_t kPart = int64_t{1} << 17;
    const int64_t parts = std::max<int64_t>(1, std::min(bytes, kMostCopied) / 2 / kPart);
    std::vector<char> from(static_cast<size_t>(parts * kPart), 1);
    std::vector<char> to(from.size(), 2);
    double best = 0;
    for (int i = 0; i < kCopies; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      backend_->pool().ParallelFor(parts, [&](int64_t part, int) {
        std::memcpy(to.data() + part * kPart, from.data() + part * kPart, kPart);
      });
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      best = std::max(best, 2.0 * static_cast<double>(parts * kPart) / std::max(seconds, 1e-9));
    }
    return best;
  }

 private:
  const std::unique_ptr<CpuBackend> backend_;
  const std::unique_ptr<CpuGemm> many_rows_;
  FewRowsGemm few_rows_;
  CpuLayerOps ops_;
};

class CudaDecodeDevice : public DecodeDevice {
 public:
  explicit CudaDecodeDevice(std::unique_ptr<CudaDevice> card) : card_(std::move(card)) {}

  Device device() override { return {card_->backend(), card_->gemm(), card_->ops()}; }

  // Copies more than the caches can store, whatever `bytes`.
  absl::StatusOr<double> CopySpeed(int64_t) override {
    Backend& backend = card_->backend();
    constexpr auto kBytes = static_cast<size_t>(kMostCopied);
    NIBBLE_ASSIGN_OR_RETURN(const Buffer from, backend.memory().Allocate(kBytes));
    NIBBLE_ASSIGN_OR_RETURN(const Buffer to, backend.memory().Allocate(kBytes));
    NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Event> begin, backend.NewEvent());
    NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Event> end, backend.NewEvent());
    double best = 0;
    for (int i = 0; i < kCopies; ++i) {
      NIBBLE_RETURN_IF_ERROR(backend.compute().Record(*begin));
      NIBBLE_RETURN_IF_ERROR(
          backend.compute().Copy({.to = to.data(), .from = from.data(), .line_bytes = kBytes}));
      NIBBLE_RETURN_IF_ERROR(backend.compute().Record(*end));
      NIBBLE_ASSIGN_OR_RETURN(const double seconds, backend.SecondsBetween(*begin, *end));
      best = std::max(best, 2.0 * static_cast<double>(kBytes) / std::max(seconds, 1e-9));
    }
    return best;
  }

 private:
  const std::unique_ptr<CudaDevice> card_;
};

}  // namespace

absl::StatusOr<DecodeOn> ParseDecodeOn(absl::string_view name) {
  if (name == "cpu") return DecodeOn::kCpu;
  if (name == "cuda" || name == "gpu") return DecodeOn::kCuda;
  return absl::InvalidArgumentError(absl::StrCat("device: '", name, "' is not cpu or cuda"));
}

absl::StatusOr<std::unique_ptr<DecodeDevice>> DecodeDevice::Create(DecodeOn on, int threads) {
  if (on == DecodeOn::kCuda) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> card, CudaDevice::Create({}));
    return std::make_unique<CudaDecodeDevice>(std::move(card));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuBackend> backend,
                          CpuBackend::Create({.threads = threads}));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuGemm> gemm, CpuGemm::Create(backend->pool(), {}));
  return std::make_unique<CpuDecodeDevice>(std::move(backend), std::move(gemm));
}

}  // namespace nibble
