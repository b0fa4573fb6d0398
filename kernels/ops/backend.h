// The interface of training and quantisation to a device. CPU and CUDA implement it with the same
// results, bit for bit.
//
// Execution model: operations are checked when called (a bad request is refused before anything
// runs), then run in the order of the calls, in the queue compute(), possibly after the call has
// returned. A request, and what it names in host memory, is read in the call; what it names in the
// backend's memory is borrowed until the operation has run. Results, amax and statistics included,
// are in the backend's memory, so that no step needs a round trip to the host. transfers() is a
// second queue, for copies and collectives beside the computation; between the two only events give
// an order.
//
// Thread-safety: one thread at a time per backend object. The CPU backend runs operations in the
// call itself, on all its threads; both its queues are that thread.
#ifndef NIBBLE_KERNELS_OPS_BACKEND_H_
#define NIBBLE_KERNELS_OPS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/quantize.h"
#include "kernels/ops/queue.h"
#include "kernels/tensor/memory.h"
#include "kernels/tensor/quantized_tensor.h"

namespace nibble {

class Backend {
 public:
  virtual ~Backend() = default;

  // The device: "cpu avx512, 2 threads", "cuda NVIDIA H200".
  virtual std::string Name() const = 0;
  virtual Memory& memory() = 0;
  // Host memory that queues copy from and to.
  virtual Memory& pinned() = 0;
  // Pins host memory of the caller, in whole pages, so that queues can copy from and to it until
  // Unpin().
  virtual absl::Status Pin(void* host, size_t bytes) = 0;
  virtual absl::Status Unpin(void* host) = 0;

  // Bytes of scratch that an operation which works in chunks may take. Fewer bytes mean more
  // chunks, and each chunk reads again the data that all chunks need.
  virtual int64_t chunk_bytes() const { return int64_t{128} << 20; }

  virtual absl::Status Quantize(const QuantizeRequest& request) = 0;
  // Whether QuantizeRequest::squared_relu may be set.
  virtual bool QuantizesSquaredRelu() const { return false; }

  virtual Queue& compute() = 0;
  virtual Queue& transfers() = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> NewEvent() = 0;
  // Waits until the place that the event marks has been reached. Returns the first error of the
  // queues, which are then unusable: its place in them is not known.
  virtual absl::Status Wait(const Event& event) = 0;
  // Whether Wait() would return at once; errors as Wait().
  virtual absl::StatusOr<bool> HasPassed(const Event& event) = 0;
  // Waits for `end`, which comes after `begin`.
  virtual absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end) = 0;
  // Waits for both queues; errors as Wait().
  virtual absl::Status Synchronize() = 0;

  // Waits for the queues, then copies a tensor's figures to the host.
  absl::StatusOr<QuantHead> ReadHead(const QuantizedTensor& tensor) {
    QuantHead head;
    absl::Status status = Synchronize();
    if (status.ok()) status = memory().CopyOut(&head, tensor.head(), sizeof(head));
    if (!status.ok()) return status;
    return head;
  }
};

// Pins host memory of the caller for the lifetime of the object.
class PinnedRange {
 public:
  PinnedRange() = default;
  static absl::StatusOr<PinnedRange> Create(Backend& backend, void* host, size_t bytes) {
    const absl::Status pinned = backend.Pin(host, bytes);
    if (!pinned.ok()) return pinned;
    return PinnedRange(&backend, host);
  }
  PinnedRange(PinnedRange&& other) noexcept { *this = std::move(other); }
  PinnedRange& operator=(PinnedRange&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(host_, other.host_);
    return *this;
  }
  // Waits for copies that use the memory.
  ~PinnedRange() {
    if (backend_ == nullptr) return;
    (void)backend_->Synchronize();
    (void)backend_->Unpin(host_);
  }

 private:
  PinnedRange(Backend* backend, void* host) : backend_(backend), host_(host) {}
  Backend* backend_ = nullptr;
  void* host_ = nullptr;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_BACKEND_H_
