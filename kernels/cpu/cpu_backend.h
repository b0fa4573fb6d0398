// The CPU backend: host memory, threads, the best instruction set of the processor.
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
  // `most`: bytes that may be in use at once; beyond that, ResourceExhausted. 0: no limit.
  explicit HostMemory(size_t most = 0) : most_(most) {}
  // Bytes in use, for a memory with a limit.
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
  // Guarded by mutex_; only for a memory with a limit.
  size_t used_ = 0;
  std::unordered_map<void*, size_t> bytes_;  // by buffer
};

class CpuBackend : public Backend {
 public:
  struct Options {
    int threads = 0;              // 0: one per processor
    std::optional<cpu::Isa> isa;  // unset: the best supported one
    size_t memory_bytes = 0;      // limit for its tensors; 0: none
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
