// The interface of training and quantisation to a device. CPU and CUDA implement it with the same
// results, bit for bit.
//
// Execution model: each backend is one queue. Operations are checked when called (a bad request is
// refused before anything runs), then run in the order of the calls, possibly after the call has
// returned. Their results, amax and statistics included, are in the backend's memory, so that no
// step needs a round trip to the host. Synchronize waits for the queue and returns the first error
// of its operations.
//
// Thread-safety: one thread at a time per backend object. The CPU backend runs operations in the
// call itself, on all its threads.
#ifndef NIBBLE_KERNELS_OPS_BACKEND_H_
#define NIBBLE_KERNELS_OPS_BACKEND_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/quantize.h"
#include "kernels/tensor/memory.h"
#include "kernels/tensor/quantized_tensor.h"

namespace nibble {

class Backend {
 public:
  virtual ~Backend() = default;

  // The device: "cpu avx512, 2 threads", "cuda NVIDIA H200".
  virtual std::string Name() const = 0;
  virtual Memory& memory() = 0;
  virtual absl::Status Quantize(const QuantizeRequest& request) = 0;
  virtual absl::Status Synchronize() = 0;

  // Waits for the queue, then copies a tensor's figures to the host.
  absl::StatusOr<QuantHead> ReadHead(const QuantizedTensor& tensor) {
    QuantHead head;
    absl::Status status = Synchronize();
    if (status.ok()) status = memory().CopyOut(&head, tensor.head(), sizeof(head));
    if (!status.ok()) return status;
    return head;
  }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_BACKEND_H_
