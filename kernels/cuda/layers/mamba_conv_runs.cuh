// Runs of tokens, which one warp convolves, and where documents begin in them.
//
// Thread-safety: as device code.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CONV_RUNS_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CONV_RUNS_CUH_

#include "kernels/cuda/layers/mamba_conv.cuh"
#include "kernels/cuda/layers/mamba_kernels.h"

namespace nibble::gpu::conv {

// The part of a run that is inside its sequence.
struct Run {
  int64_t row;    // of its first token
  int64_t begin;  // the first token
  int count;      // of tokens; 0: there is no such run
};
template <int kTokens>
__device__ __forceinline__ Run RunAt(const ConvArgs& args, int64_t index) {
  const int64_t per_sequence = (args.length + kTokens - 1) / kTokens;
  const int64_t sequence = index / per_sequence;
  const int64_t begin = (index - sequence * per_sequence) * kTokens;
  const int64_t rest = sequence < args.sequences ? args.length - begin : 0;
  return {sequence * args.length + begin, begin, rest < kTokens ? static_cast<int>(rest) : kTokens};
}
__device__ __forceinline__ int64_t DocumentOf(const ConvArgs& args, int64_t row) {
  return args.doc_begin == nullptr ? 0 : __ldg(args.doc_begin + row);
}

// Bit i: whether token first + i of a run, if it is before `count`, is one of the first `near`
// tokens of its document. All lanes of a warp call together.
__device__ __forceinline__ uint32_t NearBegins(const ConvArgs& args, const Run& run, int first,
                                               int count, int near) {
  if (args.doc_begin == nullptr) return 0;
  const int lane = static_cast<int>(threadIdx.x % 32), at = first + lane;
  const bool is_near = at < count && run.begin + at - DocumentOf(args, run.row + at) < near;
  uint32_t bits = static_cast<uint32_t>(is_near) << lane;
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) bits |= __shfl_xor_sync(0xffffffffu, bits, mask);
  return bits;
}

// The inputs of the kTaps − 1 rows before a run, zero where the run's first token does not depend
// on them.
template <class T, int kVec, int kTaps>
__device__ __forceinline__ void LoadPast(const ConvArgs& args, const Run& run, const T* in,
                                         float (&past)[kTaps][kVec]) {
  const int64_t document = DocumentOf(args, run.row);
#pragma unroll
  for (int i = 0; i < kTaps - 1; ++i) {
    const int back = kTaps - 1 - i;
    const bool seen = back < args.width && run.begin - back >= document;
    Raw<T, kVec> raw = {};
    if (seen) raw = LoadRaw<T, kVec>(in + (run.row - back) * args.in_stride);
#pragma unroll
    for (int v = 0; v < kVec; ++v) past[i][v] = raw[v];
  }
}

}  // namespace nibble::gpu::conv

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CONV_RUNS_CUH_
