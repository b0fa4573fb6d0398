// The device that a benchmark of the model runs on: the CPU, or a CUDA card.
//
// Ownership: owns backend, GEMM engine and operations. Thread-safety: as kernels/ops/backend.h.
#ifndef NIBBLE_BENCH_STEP_BENCH_DEVICE_H_
#define NIBBLE_BENCH_STEP_BENCH_DEVICE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/trainer/model/device.h"

namespace nibble::bench {

class BenchDevice {
 public:
  // `name`: "cpu", with `threads` (0: every processor), or "cuda".
  static absl::StatusOr<std::unique_ptr<BenchDevice>> Create(const std::string& name, int threads);
  virtual ~BenchDevice() = default;

  virtual Device device() = 0;
  // The largest number of bytes of tensors that were in use at once.
  virtual size_t peak_bytes() const = 0;
  // Limits measured now: bytes read and written per second by a copy, and floating-point operations
  // per second of a large BF16 GEMM.
  virtual absl::StatusOr<double> CopyRate() = 0;
  absl::StatusOr<double> GemmRate();
  // Bytes per second of a copy from the device into pinned host memory.
  absl::StatusOr<double> ToHostRate();

 private:
  virtual int64_t gemm_size() const = 0;
};

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_STEP_BENCH_DEVICE_H_
