// Queues, events and pinned memory of a CUDA device: streams, CUDA events, cudaHostAlloc.
//
// Ownership: a CudaQueue borrows its stream and the error that queues share; a CudaEvent owns its
// CUDA event. Thread-safety: see Queue; QueueError from any thread, since CUDA calls host functions
// on a thread of its own.
#ifndef NIBBLE_KERNELS_CUDA_CUDA_QUEUE_H_
#define NIBBLE_KERNELS_CUDA_CUDA_QUEUE_H_

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "kernels/ops/queue.h"
#include "kernels/tensor/memory.h"

namespace nibble {

// The first error of host work in a device's queues.
class QueueError {
 public:
  void Set(const absl::Status& error);
  absl::Status Get() const;

 private:
  mutable Mutex mutex_;
  absl::Status first_ ABSL_GUARDED_BY(mutex_);
};

class CudaEvent : public Event {
 public:
  static absl::StatusOr<std::unique_ptr<CudaEvent>> Create();
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  const cudaEvent_t event_;
};

class CudaQueue : public Queue {
 public:
  // `frees`: how often memory that kernels may use was freed.
  CudaQueue(cudaStream_t stream, QueueError& error, const std::atomic<uint64_t>& frees)
      : stream_(stream), error_(error), frees_(frees) {}

  absl::Status CopyIn(void* device, const void* pinned, size_t bytes) override;
  absl::Status CopyOut(void* pinned, const void* device, size_t bytes) override;
  absl::Status Copy(const DeviceCopy& copy) override;
  absl::Status Host(std::function<absl::Status()> work) override;
  absl::Status Record(Event& event) override;
  absl::Status WaitFor(const Event& event) override;
  // As a CUDA graph.
  bool records() const override { return true; }
  absl::Status BeginRecording() override;
  absl::StatusOr<std::unique_ptr<Recording>> EndRecording() override;
  bool IsValid(const Recording& recording) const override;
  absl::Status Run(const Recording& recording) override;
  // Waits for everything enqueued; the first error of host work, if there is one.
  absl::Status Synchronize();

  cudaStream_t stream() const { return stream_; }

 private:
  const cudaStream_t stream_;
  QueueError& error_;
  const std::atomic<uint64_t>& frees_;
};

class CudaPinnedMemory : public Memory {
 public:
  absl::StatusOr<Buffer> Allocate(size_t bytes) override;
  // Both sides are host memory.
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override;
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override;

 private:
  void Free(void* data) override { cudaFreeHost(data); }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_CUDA_QUEUE_H_
