// The order of work on a device. Work is enqueued and runs later, in the order of the calls; events
// mark places in that order, so that queues wait for each other and the host waits for a queue.
//
// Ownership: queues belong to their backend; pointers are borrowed until the work has run.
// Thread-safety: one thread at a time for all queues of a backend.
#ifndef NIBBLE_KERNELS_OPS_QUEUE_H_
#define NIBBLE_KERNELS_OPS_QUEUE_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble {

// A place in a queue, from the call of Queue::Record() on; it may be recorded again. Made by
// Backend::NewEvent(), whose backend outlives it.
class Event {
 public:
  virtual ~Event() = default;
};

// Lines of equal length, at equal distances. `to` and `from` are on the device and do not overlap.
struct DeviceCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t line_bytes = 0;
  size_t lines = 1;
  size_t to_pitch = 0;  // from line to line; ignored for a single line
  size_t from_pitch = 0;

  // The extent of all lines, with the gaps between them.
  size_t to_bytes() const { return lines == 0 ? 0 : (lines - 1) * to_pitch + line_bytes; }
  size_t from_bytes() const { return lines == 0 ? 0 : (lines - 1) * from_pitch + line_bytes; }
};

// Work of a queue that was recorded once and can be enqueued any number of times, without the
// host's work for each operation. Made by Queue::EndRecording(), whose queue outlives it.
class Recording {
 public:
  virtual ~Recording() = default;
};

class Queue {
 public:
  virtual ~Queue() = default;

  // Copies between the device and pinned host memory (Backend::pinned(), Backend::Pin()). The host
  // may neither write what is copied in nor read what is copied out until the copy has run.
  virtual absl::Status CopyIn(void* device, const void* pinned, size_t bytes) = 0;
  virtual absl::Status CopyOut(void* pinned, const void* device, size_t bytes) = 0;
  // Copies within the device.
  virtual absl::Status Copy(const DeviceCopy& copy) = 0;
  // Runs `work` on the host, in its turn. It must not call the backend; its error is an error of
  // the queue.
  virtual absl::Status Host(std::function<absl::Status()> work) = 0;

  virtual absl::Status Record(Event& event) = 0;
  // What is enqueued from now on runs after the place that `event` marks now, in any queue of the
  // backend. An event that was never recorded marks the beginning.
  virtual absl::Status WaitFor(const Event& event) = 0;

  // Whether the queue can record; otherwise Unimplemented.
  virtual bool records() const { return false; }
  // From now on the backend's operations and copies within the device are recorded, with their
  // arguments, instead of enqueued. Nothing else may be called until EndRecording(), which must
  // follow, even after an error. Operations may not allocate while they are recorded: each has run
  // before with the same shapes. Null if nothing was recorded.
  virtual absl::Status BeginRecording() { return NoRecording(); }
  virtual absl::StatusOr<std::unique_ptr<Recording>> EndRecording() { return NoRecording(); }
  // Whether no memory that the recording may use has been freed since.
  virtual bool IsValid(const Recording&) const { return false; }
  // Enqueues everything that was recorded. FailedPrecondition, with nothing enqueued, if it is not
  // valid.
  virtual absl::Status Run(const Recording&) { return NoRecording(); }

 private:
  static absl::Status NoRecording() {
    return absl::UnimplementedError("the queue does not record");
  }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_QUEUE_H_
