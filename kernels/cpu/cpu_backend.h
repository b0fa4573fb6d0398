// The CPU backend: host memory, threads, the best instruction set of the processor.
//
// Ownership: owns its thread pool and memory. Thread-safety: see Backend.
#ifndef NIBBLE_KERNELS_CPU_CPU_BACKEND_H_
#define NIBBLE_KERNELS_CPU_CPU_BACKEND_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "kernels/ops/backend.h"
#include "kernels/tensor/memory_meter.h"

namespace nibble {

class HostMemory : public Memory {
 public:
  // `most`: bytes that may be in use at once; beyond that, ResourceExhausted. 0: no limit.
  explicit HostMemory(size_t most = 0) : meter_("host memory", most) {}
  const MemoryMeter& meter() const { return meter_; }
  MemoryUse use() const override { return meter_.use(); }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override;
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override;
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override;

 private:
  void Free(void* data) override;

  MemoryMeter meter_;
};

// Its work runs in the call; an event is the time of its last recording.
class CpuQueue : public Queue {
 public:
  explicit CpuQueue(std::function<double()> clock) : clock_(std::move(clock)) {}
  absl::Status CopyIn(void* device, const void* pinned, size_t bytes) override;
  absl::Status CopyOut(void* pinned, const void* device, size_t bytes) override;
  absl::Status Copy(const DeviceCopy& copy) override;
  absl::Status Host(std::function<absl::Status()> work) override { return work(); }
  absl::Status Record(Event& event) override;
  absl::Status WaitFor(const Event&) override { return absl::OkStatus(); }

 private:
  const std::function<double()> clock_;
};

class CpuBackend : public Backend {
 public:
  struct Options {
    int threads = 0;                // 0: one per processor
    std::optional<cpu::Isa> isa;    // unset: the best supported one
    size_t memory_bytes = 0;        // limit for its tensors; 0: none
    std::function<double()> clock;  // of events, in seconds, monotonic; null: the steady clock
  };
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(const Options& options);

  std::string Name() const override;
  HostMemory& memory() override { return memory_; }
  absl::Status Quantize(const QuantizeRequest& request) override;
  Memory& pinned() override { return pinned_; }
  absl::Status Pin(void*, size_t) override { return absl::OkStatus(); }
  absl::Status Unpin(void*) override { return absl::OkStatus(); }
  Queue& compute() override { return queue_; }
  Queue& transfers() override { return queue_; }
  absl::StatusOr<std::unique_ptr<Event>> NewEvent() override;
  absl::Status Wait(const Event&) override { return absl::OkStatus(); }
  absl::StatusOr<bool> HasPassed(const Event&) override { return true; }
  absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }

  ThreadPool& pool() { return pool_; }

 private:
  CpuBackend(const Options& options, const cpu::LaneKernels& kernels);

  HostMemory memory_;
  HostMemory pinned_;
  CpuQueue queue_;
  ThreadPool pool_;
  const cpu::LaneKernels& kernels_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_CPU_BACKEND_H_
