// A device for tests that behaves like a GPU towards the code above kernels/ops: its memory faults
// when the host touches it, its queues run late, out of step with the host and with each other, and
// its copies need pinned memory. It uses the CPU's operations, so that a caller that waits
// correctly gets the CPU's results bit for bit, and one that does not gets other results or a
// fault.
//
// Execution model: enqueued work is stored. It runs when the host waits for it, and now and then
// while the host enqueues more; a seed determines which queue runs, and how far. Everything
// runs on the caller's thread: the device is late, but not concurrent.
//
// Ownership: owns the CPU operations; a LateDevice outlives its buffers and events. Thread-safety:
// one thread.
#ifndef NIBBLE_KERNELS_LATE_LATE_DEVICE_H_
#define NIBBLE_KERNELS_LATE_LATE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/layers/cpu_layer_ops.h"
#include "kernels/gemm/cpu_gemm.h"
#include "kernels/late/late_memory.h"
#include "kernels/ops/backend.h"
#include "kernels/wrapped/wrapped_ops.h"

namespace nibble {

class LateBackend : public Backend, public Passage {
 public:
  struct Options {
    int threads = 1;
    size_t memory_bytes = size_t{1} << 30;
    uint64_t seed = 1;              // of the order of work
    std::function<double()> clock;  // of events; null: the steady clock
  };
  static absl::StatusOr<std::unique_ptr<LateBackend>> Create(const Options& options);
  ~LateBackend() override;

  std::string Name() const override { return "late " + cpu_->Name(); }
  LateMemory& memory() override { return *memory_; }
  PinnedMemory& pinned() override { return pinned_; }
  absl::Status Pin(void* host, size_t bytes) override { return pinned_.Pin(host, bytes); }
  absl::Status Unpin(void* host) override { return pinned_.Unpin(host); }
  absl::Status Quantize(const QuantizeRequest& request) override;
  Queue& compute() override { return queues_[0]; }
  Queue& transfers() override { return queues_[1]; }
  absl::StatusOr<std::unique_ptr<Event>> NewEvent() override;
  absl::Status Wait(const Event& event) override;
  absl::StatusOr<bool> HasPassed(const Event& event) override;
  absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end) override;
  absl::Status Synchronize() override;

  // Passage: enqueues an operation on compute().
  absl::Status Pass(const OpCost& cost, std::function<absl::Status()> operation) override;

  ThreadPool& pool() { return cpu_->pool(); }
  // Work that is still to run.
  size_t waiting() const { return queues_[0].work_.size() + queues_[1].work_.size(); }

 private:
  struct Mark;  // what an event shares with the queues
  class LateEvent;
  struct Work {
    std::function<absl::Status()> run;
    bool on_device = true;        // may touch the device's memory
    bool on_host = false;         // may touch pinned memory
    bool once = false;            // borrows pinned memory until it has run
    std::shared_ptr<Mark> after;  // runs once this mark …
    uint64_t count = 0;           // … has been passed this often
  };
  struct LateRecording : Recording {
    std::vector<Work> work;
    uint64_t frees = 0;
  };
  class LateQueue : public Queue {
   public:
    absl::Status CopyIn(void* device, const void* pinned, size_t bytes) override;
    absl::Status CopyOut(void* pinned, const void* device, size_t bytes) override;
    absl::Status Copy(const DeviceCopy& copy) override;
    absl::Status Host(std::function<absl::Status()> work) override;
    absl::Status Record(Event& event) override;
    absl::Status WaitFor(const Event& event) override;
    bool records() const override { return true; }
    absl::Status BeginRecording() override;
    absl::StatusOr<std::unique_ptr<Recording>> EndRecording() override;
    bool IsValid(const Recording& recording) const override;
    absl::Status Run(const Recording& recording) override;

   private:
    friend class LateBackend;
    LateBackend* backend_ = nullptr;
    std::deque<Work> work_;
    std::unique_ptr<LateRecording> recording_;  // while it records
  };

  LateBackend() = default;
  absl::Status Enqueue(LateQueue& queue, Work work);
  // Runs one piece of work of a queue, drawn from those that are not blocked. FailedPrecondition if
  // all are.
  absl::Status RunOne();
  absl::Status Drain();

  std::unique_ptr<CpuBackend> cpu_;
  std::unique_ptr<LateMemory> memory_;
  PinnedMemory pinned_{[this] { return Drain(); }};
  std::function<double()> clock_;
  std::mt19937_64 random_;
  LateQueue queues_[2];
  absl::Status failed_;
  bool running_ = false;
};

class LateDevice {
 public:
  static absl::StatusOr<std::unique_ptr<LateDevice>> Create(const LateBackend::Options& options);

  LateBackend& backend() { return *backend_; }
  GemmEngine& gemm() { return *late_gemm_; }
  LayerOps& ops() { return *late_ops_; }

 private:
  std::unique_ptr<LateBackend> backend_;
  std::unique_ptr<CpuGemm> gemm_;
  std::unique_ptr<CpuLayerOps> ops_;
  std::unique_ptr<WrappedGemm> late_gemm_;
  std::unique_ptr<WrappedLayerOps> late_ops_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_LATE_LATE_DEVICE_H_
