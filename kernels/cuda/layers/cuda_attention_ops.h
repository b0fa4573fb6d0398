// Attention and rotary positions on a CUDA device.
//
// Kernels, by device and shape; LastPath() names the one that ran:
//   hopper   compute capability 9, head_dim 64 or 128: warpgroup matmuls, bulk copies; the
//            backward pass adds dq in turns of key blocks
//   mma      any device, head_dim 16, 32, 64, 80, 96 or 128, and continued sequences over caches
//   simple   everything else up to head_dim 1024: slow, without tensor cores
// hopper and mma take BF16 matrices with rows that begin at multiples of 16 bytes; simple also
// takes FP32 and any alignment. Larger head_dims are refused by name.
//
// Results are the same bits every time, whatever the number of multiprocessors. Nothing waits for
// the device, except where scratch grows: it is allocated at the first request of a size, and a
// table of rotations at the first of a theta, head_dim or length. doc_begin is trusted.
//
// Ownership: borrows the backend, which must outlive it, and owns scratch in its memory.
// Execution model, thread-safety: as Backend.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_CUDA_ATTENTION_OPS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_CUDA_ATTENTION_OPS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/attention_ops.h"

namespace nibble {

class CudaAttentionOps : public AttentionOps {
 public:
  // The backend's device is the calling thread's current device.
  explicit CudaAttentionOps(CudaBackend& backend);

  absl::Status Run(const Rope& request) override;
  absl::Status Forward(const AttentionForward& request) override;
  absl::Status Backward(const AttentionBackward& request) override;
  size_t ScratchBytes(const AttentionBackward& request) const override;

  // For checks and measurements. The kernels of the last Forward or Backward.
  const std::string& LastPath() const { return last_path_; }
  // Uses no faster kernels than these; the slower ones are the oracle on the card.
  enum class Path { kSimple, kMma, kHopper };
  void SetPathLimit(Path limit) { path_limit_ = limit; }
  Path path_limit() const { return path_limit_; }
  // Warpgroups of queries per block in the forward pass with head_dim 64, 2 or 3; 0: by length.
  void SetForwardWarpgroups(int warpgroups) { forward_warpgroups_ = warpgroups; }

 private:
  struct RopeTable {
    Buffer cosines, sines;  // [positions, half] f32
    int64_t positions = 0;
  };

  absl::Status Grow(Buffer& buffer, size_t bytes);
  absl::StatusOr<const RopeTable*> TableFor(int half, double theta, int64_t positions);
  absl::Status AttendOverCaches(const AttentionForward& request);
  absl::Status SimpleBackward(const AttentionBackward& request);
  // The counters by which persistent blocks take work.
  absl::StatusOr<int*> Schedule();
  // `aligned`: the tensor-core kernels take the request's matrices.
  Path PathFor(int head_dim, bool aligned) const;
  Path PathOf(const AttentionBackward& request) const;

  CudaBackend& backend_;
  int device_ = 0;
  bool hopper_ = false;
  Path path_limit_ = Path::kHopper;
  int forward_warpgroups_ = 0;
  std::string last_path_;
  std::map<std::pair<int, double>, RopeTable> rope_tables_;
  Buffer schedule_;  // two ints, zeros between launches
  Buffer lse2_, dots_, last_query_, dq_sums_, turns_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_CUDA_ATTENTION_OPS_H_
