// One CUDA card with everything that a model needs of it, for code that is also built where there
// is no CUDA toolkit: this header includes nothing of CUDA.
//
// Ownership: a CudaDevice owns backend, GEMM engine and operations. Thread-safety: as
// kernels/ops/backend.h.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_CUDA_DEVICE_H_
#define NIBBLE_KERNELS_CUDA_DEVICE_CUDA_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/ops/backend.h"
#include "kernels/ops/layer_ops.h"
#include "kernels/tensor/memory_meter.h"

namespace nibble {

class CudaDevice {
 public:
  struct Options {
    int index = 0;            // among the cards that this process sees (CUDA_VISIBLE_DEVICES)
    size_t memory_bytes = 0;  // limit for tensors; 0: all of the card's memory
    bool native = true;       // as CudaGemm::Options
  };
  // Unimplemented if the program was built without a CUDA toolkit; otherwise as CudaBackend and
  // CudaGemm.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(const Options& options);
  // The number of cards that this process sees; errors as Create().
  static absl::StatusOr<int> Count();
  virtual ~CudaDevice() = default;

  virtual Backend& backend() = 0;
  virtual GemmEngine& gemm() = 0;
  virtual LayerOps& ops() = 0;
  virtual const MemoryMeter& meter() const = 0;
  // The card's UUID: the same in every process, other for every card.
  virtual std::array<uint64_t, 2> card() const = 0;
  // Enqueues a copy within the card's memory: the limit that kernels are measured against.
  virtual absl::Status Copy(void* to, const void* from, size_t bytes) = 0;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_CUDA_DEVICE_H_
