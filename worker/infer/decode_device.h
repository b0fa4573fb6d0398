// The devices of decoding: the CPU, as in training but with a GEMM engine for few rows, or a card.
//
// Ownership: owns its parts; outlives what borrows device(). Thread-safety: as
// kernels/ops/backend.h.
#ifndef NIBBLE_WORKER_INFER_DECODE_DEVICE_H_
#define NIBBLE_WORKER_INFER_DECODE_DEVICE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/thread_pool.h"
#include "worker/trainer/model/device.h"

namespace nibble {

enum class DecodeOn : uint8_t { kCpu, kCuda };
// "cpu"; "cuda" or "gpu". InvalidArgument with both otherwise.
absl::StatusOr<DecodeOn> ParseDecodeOn(absl::string_view name);

class DecodeDevice {
 public:
  virtual ~DecodeDevice() = default;
  // `threads`, of the CPU, as ThreadPool's. Errors of CudaDevice::Create.
  static absl::StatusOr<std::unique_ptr<DecodeDevice>> Create(DecodeOn on, int threads);

  virtual Device device() = 0;
  // Bytes per second, read and written, of a copy of about `bytes` within its memory.
  virtual absl::StatusOr<double> CopySpeed(int64_t bytes) = 0;
  // The CPU's threads; null for a card.
  virtual ThreadPool* pool() { return nullptr; }

  Memory& memory() { return device().memory(); }
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_DECODE_DEVICE_H_
