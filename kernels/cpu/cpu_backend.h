// The CPU backend: host memory, threads, the best instruction set the processor has.
//
// Ownership: owns its thread pool and memory. Thread-safety: see Backend.
#ifndef NIBBLE_KERNELS_CPU_CPU_BACKEND_H_
#define NIBBLE_KERNELS_CPU_CPU_BACKEND_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "common/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "kernels/ops/backend.h"

namespace nibble {

class HostMemory : public Memory {
 public:
  // `most`: bytes that may be in use at once; more is refused with ResourceExhausted. 0: as many as
  // the machine gives.
  explicit HostMemory(size_t most = 0) : most_(most) {}
  // Bytes, of a memory that has a bound.
  size_t used() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return used_;
  }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override;
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override;
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override;

 private:
  void Free(void* data) override;

  const size_t most_;
  mutable std::mutex mutex_;
  // Guarded by mutex_; of a memory that has a bound.
  size_t used_ = 0;
  std::unordered_map<void*, size_t> bytes_;  // of each buffer
};

class CpuBackend : public Backend {
 public:
  struct Options {
    int threads = 0;              // 0: every processor
    std::optional<cpu::Isa> isa;  // unset: the best there is
    size_t memory_bytes = 0;      // that its tensors may take; 0: no bound
  };
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(const Options& options);

  std::string Name() const override;
  HostMemory& memory() override { return memory_; }
  absl::Status Quantize(const QuantizeRequest& request) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }

  ThreadPool& pool() { return pool_; }

 private:
  CpuBackend(const Options& options, const cpu::LaneKernels& kernels)
      : memory_(options.memory_bytes), pool_(options.threads), kernels_(kernels) {}

  HostMemory memory_;
  ThreadPool pool_;
  const cpu::LaneKernels& kernels_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_CPU_BACKEND_H_
