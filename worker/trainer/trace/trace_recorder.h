// Records when the operations of a device run, for some steps: operations, copies and collectives
// as spans of their queues, from events around them, and what the host does from its clock. Nothing
// waits while it records.
//
// A TracedDevice stands in front of a device for the whole run, and the recorder is its
// collective's tracer. While nothing is recorded both only forward calls: an operation costs one
// more virtual call, and one from a recorded pass nothing.
//
// Ownership: everything here borrows what it wraps, and the recorder; the recorder owns its events.
// Thread-safety: one thread, that of the device.
#ifndef NIBBLE_WORKER_TRAINER_TRACE_TRACE_RECORDER_H_
#define NIBBLE_WORKER_TRAINER_TRACE_TRACE_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/backend.h"
#include "kernels/wrapped/wrapped_ops.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/trace/chrome_trace.h"

namespace nibble {

class TraceRecorder : public Passage, public CollectiveObserver {
 public:
  // A trace keeps the first of them.
  static constexpr size_t kMostSpans = 200'000;

  // `clock`: seconds, monotonic, of the host.
  TraceRecorder(Backend& backend, std::function<double()> clock)
      : backend_(backend), clock_(std::move(clock)) {}

  bool active() const { return active_; }
  bool direct() const override { return !active_; }

  // Waits for the queues, and records from now on.
  absl::Status Begin();
  // Waits for the queues. Returns what was recorded since Begin(), on the host's clock, and
  // records no more.
  absl::StatusOr<std::vector<TraceSpan>> End();
  int64_t dropped() const { return dropped_; }

  // The place in the queue of the computation at which Begin() was called, and its time.
  const Event& origin() const { return *origin_; }
  double origin_seconds() const { return origin_seconds_; }
  double now() const { return clock_(); }

  // Runs what enqueues work in `queue`, between two events of it.
  absl::Status Around(Queue& queue, TraceTrack track, const OpCost& cost,
                      absl::FunctionRef<absl::Status()> enqueue);
  // Something that the host has done; ignored while nothing is recorded.
  void AddHost(const char* name, double begin, double end);
  // Of a collective: spans of the queue of transfers; of the host where it always waits.
  void Entered(const char* operation, uint64_t number) override;
  void Left() override;

 private:
  struct Marked {
    TraceTrack track;
    OpCost cost;
    std::unique_ptr<Event> begin, end;
  };
  // The index in marked_ of a new span; unset: there are as many as a trace keeps.
  absl::StatusOr<std::optional<size_t>> Mark(TraceTrack track, const OpCost& cost);
  // An operation of the queue of the computation.
  absl::Status Pass(const OpCost& cost, std::function<absl::Status()> operation) override;

  Backend& backend_;
  const std::function<double()> clock_;
  bool active_ = false;
  std::unique_ptr<Event> origin_;
  double origin_seconds_ = 0;
  std::vector<Marked> marked_;
  std::vector<TraceSpan> host_;
  int64_t dropped_ = 0;
  absl::Status problem_;                 // the first of Entered() and Left()
  const char* collective_ = nullptr;     // that was entered; null: none, or it is not kept
  std::optional<size_t> collective_at_;  // of marked_; unset: it is the host's
  double collective_begin_ = 0;
};

// A queue whose copies are spans.
class TracedQueue : public Queue {
 public:
  TracedQueue(Queue& inner, TraceRecorder& recorder) : inner_(inner), recorder_(recorder) {}
  absl::Status CopyIn(void* device, const void* pinned, size_t bytes) override;
  absl::Status CopyOut(void* pinned, const void* device, size_t bytes) override;
  absl::Status Copy(const DeviceCopy& copy) override;
  absl::Status Host(std::function<absl::Status()> work) override {
    return inner_.Host(std::move(work));
  }
  absl::Status Record(Event& event) override { return inner_.Record(event); }
  absl::Status WaitFor(const Event& event) override { return inner_.WaitFor(event); }
  bool records() const override { return inner_.records(); }
  absl::Status BeginRecording() override { return inner_.BeginRecording(); }
  absl::StatusOr<std::unique_ptr<Recording>> EndRecording() override {
    return inner_.EndRecording();
  }
  absl::Status Run(const Recording& recording) override { return inner_.Run(recording); }

 private:
  Queue& inner_;
  TraceRecorder& recorder_;
};

class TracedDevice {
 public:
  TracedDevice(const Device& inner, TraceRecorder& recorder)
      : backend_(inner.backend, recorder), gemm_(inner.gemm, recorder), ops_(inner.ops, recorder) {}

  Device device() { return {backend_, gemm_, ops_}; }

 private:
  class TracedBackend : public WrappedBackend {
   public:
    TracedBackend(Backend& inner, TraceRecorder& recorder)
        : WrappedBackend(inner, recorder),
          compute_(inner.compute(), recorder),
          transfers_(inner.transfers(), recorder) {}
    Queue& compute() override { return compute_; }
    Queue& transfers() override { return transfers_; }

   private:
    TracedQueue compute_, transfers_;
  };

  TracedBackend backend_;
  WrappedGemm gemm_;
  WrappedLayerOps ops_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_TRACE_TRACE_RECORDER_H_
