// Mamba-2's convolution and scan on a CUDA device.
//
// Kernels, by shape; LastPath() names those that ran:
//   tiles    the scan of whole sequences in BF16, head_dim and state multiples of 8, state up to
//            128, rows at multiples of 16 bytes: tensor cores; heads wider than a tile are divided
//            into slices
//   hopper   on compute capability 9, the same by warpgroup products, where tiles have 64 columns
//            and a state of 128
//   simple   the scan of everything else: slow, FP32 throughout, no tensor cores
//   tokens   decoding, any shape and type
// The convolution takes 16-byte pieces of rows where width is 4 and the rows allow it, otherwise
// single channels.
//
// Results are the same bits every time, whatever the number of multiprocessors: sums are divided by
// shape alone and taken in a fixed order. Nothing waits for the device, except where scratch grows,
// at the first request of a size. doc_begin is trusted: it is in device memory.
//
// Scratch: the scan runs whole sequences in batches whose states fill at most a gigabyte, or one by
// one; beside the states (and gradients) a batch needs 2.5 KB per head and 128 tokens, twice as
// much backward, and 24 KB per group and 128 tokens on Hopper.
//
// Ownership: borrows the backend, which must outlive it, and owns scratch in its memory. Execution
// model, thread-safety: as Backend.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_CUDA_MAMBA_OPS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_CUDA_MAMBA_OPS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/layers/mamba_kernels.h"
#include "kernels/ops/mamba_ops.h"

namespace nibble {

class CudaMambaOps : public MambaOps {
 public:
  explicit CudaMambaOps(CudaBackend& backend);

  absl::Status Forward(const ConvForward& request) override;
  absl::Status Backward(const ConvBackward& request) override;
  absl::Status Forward(const ScanForward& request) override;
  absl::Status Backward(const ScanBackward& request) override;
  size_t ScratchBytes(const ConvBackward& request) const override;
  size_t ScratchBytes(const ScanBackward& request) const override;

  // For checks and measurements.
  const std::string& LastPath() const { return last_path_; }
  // Uses only the simple scan kernels, the oracle on the card.
  void UseSimpleScanOnly(bool simple) { simple_only_ = simple; }
  // Whether the kernels of Hopper run where they can, for comparison with the others.
  void UseHopper(bool use) { use_hopper_ = use; }
  // Bytes of a batch's states, which is at least a sequence.
  void SetBatchBytes(int64_t bytes) { batch_bytes_ = bytes; }

 private:
  // A request to the scan of whole sequences: the arguments of its first batch, without scratch.
  struct Scan {
    gpu::ScanArgs args;
    bool tiles = false;
    bool backward = false;
    bool hopper = false;
    int64_t batch = 0;  // sequences
  };
  // `aligned`: the tile kernels take the request's matrices.
  Scan Plan(const ScanShape& shape, const ScanParams& params, const SequenceLayout& layout,
            bool aligned, bool backward) const;
  Scan Plan(const ScanBackward& request) const;
  static size_t ScratchBytes(const Scan& scan);
  absl::Status Run(Scan& scan, float* ddt_bias, float* da_log, float* dd);
  absl::Status RunBatch(const Scan& scan, const gpu::ScanArgs& args);
  absl::Status Grow(size_t bytes);

  CudaBackend& backend_;
  Buffer scratch_;
  bool hopper_ = false;  // the device is one
  bool use_hopper_ = true;
  bool simple_only_ = false;
  int64_t batch_bytes_ = int64_t{1} << 30;
  std::string last_path_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_CUDA_MAMBA_OPS_H_
