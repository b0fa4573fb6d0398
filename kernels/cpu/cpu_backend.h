// The CPU backend: host memory, threads, the best instruction set the processor has.
//
// Ownership: owns its thread pool and memory. Thread-safety: see Backend.
#ifndef NIBBLE_KERNELS_CPU_CPU_BACKEND_H_
#define NIBBLE_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "kernels/ops/backend.h"

namespace nibble {

class HostMemory : public Memory {
 public:
  absl::StatusOr<Buffer> Allocate(size_t bytes) override;
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override;
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override;

 private:
  void Free(void* data) override;
};

class CpuBackend : public Backend {
 public:
  struct Options {
    int threads = 0;              // 0: every processor
    std::optional<cpu::Isa> isa;  // unset: the best there is
  };
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(const Options& options);

  std::string Name() const override;
  HostMemory& memory() override { return memory_; }
  absl::Status Quantize(const QuantizeRequest& request) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }

  ThreadPool& pool() { return pool_; }

 private:
  CpuBackend(int threads, const cpu::LaneKernels& kernels) : pool_(threads), kernels_(kernels) {}

  HostMemory memory_;
  ThreadPool pool_;
  const cpu::LaneKernels& kernels_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_CPU_BACKEND_H_
