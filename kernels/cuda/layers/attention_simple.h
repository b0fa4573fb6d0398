// Launches of the simple attention kernels: FP32 or BF16, any head_dim up to kSimpleHeadDim, rows
// at any alignment, whole sequences or continued ones over caches. They exist so that every request
// runs; slow, without tensor cores.
//
// Ownership: borrows. Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_SIMPLE_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_SIMPLE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/layers/attention_args.h"

namespace nibble::gpu {

inline constexpr int kSimpleHeadDim = 1024;

// Matrices are f32 if `f32`, else bf16.
struct SimpleForward {
  AttentionDims dims;
  bool f32;
  const void* qkv;  // [tokens, qkv_stride]: q | k | v
  int64_t qkv_stride;
  void* out;  // [tokens, out_stride]
  int64_t out_stride;
  float* lse;                // [heads, tokens]; null with caches
  float* amax;               // [1], 0 or more when the kernel starts; null: not wanted
  const int32_t* doc_begin;  // [tokens]; null: zeros
};

struct SimpleBackward {
  AttentionDims dims;
  bool f32;
  const void* qkv;  // [tokens, qkv_stride]
  int64_t qkv_stride;
  const void* out;  // [tokens, out_stride]
  int64_t out_stride;
  const void* dout;  // [tokens, dout_stride]
  int64_t dout_stride;
  const float* lse;  // [heads, tokens]
  void* dqkv;        // [tokens, dqkv_stride]
  int64_t dqkv_stride;
  const int32_t* doc_begin;  // [tokens]; null: zeros
  float* dots;               // [heads, tokens] scratch: Σ out · dout
};

// pieces.count == 0: whole sequences. Otherwise appends to the caches first, then attends over
// them.
cudaError_t LaunchSimpleForward(const SimpleForward& args, const CachedPieces& pieces,
                                cudaStream_t stream);
cudaError_t LaunchSimpleBackward(const SimpleBackward& args, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_SIMPLE_H_
