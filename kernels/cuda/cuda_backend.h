// The CUDA backend: one device, two streams. Quantises to every format with the bits of the CPU
// backend, statistics included.
//
// Quantize enqueues and returns; it never waits for the device, except to allocate: formats with a
// scale per line keep the lines' amax in a buffer that grows with the largest request so far. Amax,
// scales, statistics and heads stay in device memory.
//
// Ownership: owns its streams and the small device buffer that its operations share (they run one
// after the other). Buffers of its memory must not outlive it. Thread-safety: see Backend.
#ifndef NIBBLE_KERNELS_CUDA_CUDA_BACKEND_H_
#define NIBBLE_KERNELS_CUDA_CUDA_BACKEND_H_

#include <cuda_runtime.h>

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_queue.h"
#include "kernels/cuda/device_fault.h"
#include "kernels/cuda/quantize_args.h"
#include "kernels/ops/backend.h"

namespace nibble {

class CudaBackend : public Backend {
 public:
  // NotFound if there is no such device or no driver; FailedPrecondition naming the device if it is
  // older than the kernels require.
  // `memory_bytes`: limit for its tensors; 0: what there is.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(int device = 0,
                                                             size_t memory_bytes = 0);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  std::string Name() const override { return "cuda " + device_name_; }
  CudaMemory& memory() override { return memory_; }
  int64_t chunk_bytes() const override { return int64_t{2} << 30; }
  absl::Status Quantize(const QuantizeRequest& request) override;
  bool QuantizesSquaredRelu() const override { return true; }
  CudaPinnedMemory& pinned() override { return pinned_; }
  absl::Status Pin(void* host, size_t bytes) override;
  absl::Status Unpin(void* host) override;
  CudaQueue& compute() override { return compute_; }
  CudaQueue& transfers() override { return transfers_; }
  absl::StatusOr<std::unique_ptr<Event>> NewEvent() override;
  absl::Status Wait(const Event& event) override;
  absl::StatusOr<bool> HasPassed(const Event& event) override;
  absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end) override;
  absl::Status Synchronize() override;
  // Makes `error` the first error of the queues, if there is none yet. From any thread.
  void Fail(const absl::Status& error) { error_.Set(error); }

  int device() const { return device_; }
  // The card's UUID: the same in every process, other for every card.
  std::array<uint64_t, 2> card() const { return card_; }
  cudaStream_t stream() const { return compute_.stream(); }
  // Where kernels report values that are out of bounds; an error of the queues from then on.
  gpu::DeviceFault* fault() const { return fault_.data<gpu::DeviceFault>(); }
  int processors() const { return processors_; }
  // The arguments that the kernels would get; for measuring them one by one. Not for formats with a
  // scale per line.
  gpu::QuantizeArgs ArgsFor(const QuantizeRequest& request) const;
  // The kernels that the last Quantize enqueued: "tile amax; tile row+column; statistics row".
  // "naive" and "general" mark the slow ones.
  const std::string& LastPath() const { return last_path_; }
  // Uses only the naive and the general kernels: they are the oracle on the card.
  void UseNaiveKernelsOnly(bool naive) { naive_only_ = naive; }

 private:
  CudaBackend(int device, cudaStream_t compute, cudaStream_t transfers, size_t memory_bytes,
              const cudaDeviceProp& card)
      : device_name_(card.name),
        device_(device),
        card_(std::bit_cast<std::array<uint64_t, 2>>(card.uuid)),
        processors_(card.multiProcessorCount),
        memory_(device, compute, memory_bytes, card.totalGlobalMem),
        compute_(compute, error_, memory_.frees()),
        transfers_(transfers, error_, memory_.frees()) {}

  // Makes room for the amax of the lines of both copies.
  absl::Status ReserveLines(const QuantizeRequest& request);
  absl::Status EnqueueAmax(const gpu::QuantizeArgs& args);
  absl::Status EnqueueQuantize(const gpu::QuantizeArgs& args, const QuantizeRequest& request);
  void Ran(const std::string& kernel);
  // The first error of the queues.
  absl::Status QueuesStatus() const;

  const std::string device_name_;
  const int device_;
  const std::array<uint64_t, 2> card_;
  const int processors_;
  QueueError error_;
  CudaMemory memory_;
  CudaQueue compute_, transfers_;
  CudaPinnedMemory pinned_;
  Buffer fault_;    // gpu::DeviceFault, pinned
  Buffer figures_;  // gpu::CopyFigures of the row copy and the column copy
  // Amax of each line of the row copy, then of the column copy. Outgrown buffers stay: a CUDA graph
  // may have recorded their addresses.
  std::vector<Buffer> line_amax_;
  bool naive_only_ = false;
  std::string last_path_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_CUDA_BACKEND_H_
