// CudaDevice of a build without a CUDA toolkit.
#include "kernels/cuda/device/cuda_device.h"

namespace nibble {
namespace {

absl::Status BuiltWithoutCuda() {
  return absl::UnimplementedError(
      "device cuda: this program was built without a CUDA toolkit; build it where nvcc is found "
      "(CUDA_HOME, PATH or /usr/local/cuda)");
}

}  // namespace

absl::StatusOr<int> CudaDevice::Count() { return BuiltWithoutCuda(); }

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(const Options&) {
  return BuiltWithoutCuda();
}

}  // namespace nibble
