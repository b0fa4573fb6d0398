// Common parts of the scan's simple kernels, which take any shape, either type and any alignment,
// compute in FP32 without tensor cores, and keep states as FP32 [state, head_dim].
//
// Thread-safety: as device code; callers place the barriers.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_SCAN_SIMPLE_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_SCAN_SIMPLE_CUH_

#include "kernels/cuda/layers/scan_element.cuh"
#include "kernels/cuda/layers/scan_tile.cuh"

namespace nibble::gpu::scan {

inline constexpr int kSimpleThreads = 256;
inline constexpr int kSimpleWarps = kSimpleThreads / 32;
inline constexpr int kTokenBlocks = kScanChunk / kBlock;  // thread blocks per chunk

// A request's matrices from the first token of a chunk on.
template <class T>
struct SimpleChunk {
  ChunkPlace place;
  ScanChunkInfo info;
  const T* xbc;
  const T* dy;

  __device__ __forceinline__ SimpleChunk(const ScanArgs& args, int64_t index)
      : place(PlaceOfChunk(args, index)),
        info(args.chunks[index]),
        xbc(static_cast<const T*>(args.xbc) + place.row * args.xbc_stride),
        dy(static_cast<const T*>(args.dy) + (args.dy == nullptr ? 0 : place.row * args.dy_stride)) {
  }
};

// Σ a[k] b[k]
template <class T>
__device__ __forceinline__ float Dot(const T* a, const T* b, int count) {
  float sum = 0;
  for (int k = 0; k < count; ++k) sum = fmaf(Widen(a[k]), Widen(b[k]), sum);
  return sum;
}

// The decay between tokens j ≤ i of a chunk.
__device__ __forceinline__ float DecayBetween(const HeadDecays& head, int i, int j) {
  const int from = j / kBlock, to = i / kBlock;
  if (from == to) return Exp2((head.high[i] - head.high[j]) + (head.low[i] - head.low[j]));
  return head.begin[i] * head.OverBlocks(from + 1, to) * head.until[j];
}
// The decay from token j to the end of the chunk.
__device__ __forceinline__ float DecayAfter(const HeadDecays& head, int j) {
  return head.until[j] * head.OverBlocks(j / kBlock + 1, kBlocks);
}

template <class T>
__device__ __forceinline__ T SumOfWarp(T x) {
#pragma unroll
  for (unsigned mask = 1; mask < 32; mask *= 2) x += FromLane(x, mask);
  return x;
}

__device__ __forceinline__ int64_t SimpleStateOffset(const ScanArgs& args, int64_t chunk,
                                                     int head) {
  return (chunk * args.heads + head) * (static_cast<int64_t>(args.state) * args.head_dim);
}

}  // namespace nibble::gpu::scan

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_SCAN_SIMPLE_CUH_
