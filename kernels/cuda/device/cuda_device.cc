#include "kernels/cuda/device/cuda_device.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/gemm/cuda_gemm.h"
#include "kernels/cuda/layers/cuda_layer_ops.h"

namespace nibble {
namespace {

class Card : public CudaDevice {
 public:
  Card(std::unique_ptr<CudaBackend> backend, std::unique_ptr<CudaGemm> gemm)
      : backend_(std::move(backend)), gemm_(std::move(gemm)), ops_(*backend_) {}
  // Freeing scratch must not overtake enqueued work.
  ~Card() override { (void)backend_->Synchronize(); }

  Backend& backend() override { return *backend_; }
  GemmEngine& gemm() override { return *gemm_; }
  LayerOps& ops() override { return ops_; }
  const MemoryMeter& meter() const override { return backend_->memory().meter(); }
  std::array<uint64_t, 2> card() const override { return backend_->card(); }
  absl::Status Copy(void* to, const void* from, size_t bytes) override {
    return StatusOf(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, backend_->stream()),
                    "cudaMemcpyAsync within the device");
  }

 private:
  const std::unique_ptr<CudaBackend> backend_;
  const std::unique_ptr<CudaGemm> gemm_;
  CudaLayerOps ops_;
};

std::string CudaVersion(int number) {
  return absl::StrCat("CUDA ", number / 1000, ".", number % 1000 / 10);
}

// CUDA's own words are the same for a machine without a driver and for an old one.
absl::Status DriverMissing() {
  int driver = 0;
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaDriverGetVersion(&driver), "cudaDriverGetVersion"));
  const std::string needed = CudaVersion(CUDART_VERSION);
  return absl::FailedPreconditionError(
      driver == 0
          ? absl::StrCat("no NVIDIA driver on this machine (libcuda.so.1); one for ", needed, " is needed")
          : absl::StrCat("the NVIDIA driver is for ", CudaVersion(driver), "; one for ", needed, " is needed"));
}

}  // namespace

absl::StatusOr<int> CudaDevice::Count() {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted == cudaErrorInsufficientDriver) return DriverMissing();
  NIBBLE_RETURN_IF_ERROR(StatusOf(counted, "cudaGetDeviceCount"));
  return count;
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(const Options& options) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> backend,
                          CudaBackend::Create(options.index, options.memory_bytes));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CudaGemm> gemm,
                          CudaGemm::Create(*backend, {.native = options.native}));
  return std::make_unique<Card>(std::move(backend), std::move(gemm));
}

}  // namespace nibble
