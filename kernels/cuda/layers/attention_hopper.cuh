// Common parts of Hopper's attention kernels: matmuls of whole tiles, and how a grid of persistent
// blocks takes work.
//
// Thread-safety: device code.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_HOPPER_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_HOPPER_CUH_

#include <cstdint>

#include "kernels/cuda/layers/async_copy.cuh"
#include "kernels/cuda/layers/attention_args.h"
#include "kernels/cuda/layers/attention_rows.cuh"
#include "kernels/cuda/layers/tensor_map.h"
#include "kernels/cuda/layers/warpgroup_mma.cuh"

namespace nibble::gpu {

inline constexpr int kWarpgroup = 128;  // threads

// A tile [kRows, kDim] in shared memory: panels of 64 columns, each kRows rows of 128 bytes.
template <int kRows, int kDim>
struct PanelTile {
  static constexpr int kPanels = kDim / kPanelColumns;
  static constexpr int kPanelBytes = kRows * kPanelRowBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;

  // Starts copying the tile's tokens first … first + kRows - 1, columns column ….
  static __device__ __forceinline__ void Copy(uint32_t to, const CUtensorMap* map, int column,
                                              int first, int sequence, uint32_t barrier) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int row = 0; row < kRows; row += kBoxTokens) {
        CopyBox(to + static_cast<uint32_t>(panel * kPanelBytes + row * kPanelRowBytes), map,
                column + panel * kPanelColumns, first + row, sequence, barrier);
      }
    }
  }
  // The tile as an operand [rows, depth] whose depth is the columns: rows row ….
  static __device__ __forceinline__ uint64_t AlongDepth(uint32_t tile, int row) {
    return OperandAt(tile + static_cast<uint32_t>(row * kPanelRowBytes), 0);
  }
  // The bytes from AlongDepth's start to depth 16 step ….
  static __device__ __forceinline__ constexpr uint32_t DepthStep(int step) {
    return static_cast<uint32_t>(step / 4 * kPanelBytes + step % 4 * 32);
  }
  // The tile as an operand [depth, columns] whose depth is the rows; from panel `panel` on.
  static __device__ __forceinline__ uint64_t AlongOutput(uint32_t tile, int panel) {
    return OperandAt(tile + static_cast<uint32_t>(panel * kPanelBytes), kPanelBytes);
  }
};

// d[64, columns] = rows of `a` from `row` on · (rows of `b`)ᵀ, both [rows, kDim]. Columns of the
// result: 64 (32 accumulators) or 128 (64) rows of b. Not committed.
template <class A, class B, int kCount>
__device__ __forceinline__ void IssueScores(float (&d)[kCount], uint32_t a, int row, uint32_t b) {
  static_assert(A::kPanels == B::kPanels);
  const uint64_t left = A::AlongDepth(a, row), right = B::AlongDepth(b, 0);
#pragma unroll
  for (int step = 0; step < 4 * A::kPanels; ++step) {
    MultiplyShared<Along::kDepth, Along::kDepth>(d, Advance(left, A::DepthStep(step)),
                                                 Advance(right, B::DepthStep(step)), step != 0);
  }
}

// d[64, columns] += a[64, kWords · 4] · tile `b`, [depth, columns]; a as fragments of the warps.
// Not committed.
template <class B, int kCount, int kWords>
__device__ __forceinline__ void IssueSum(float (&d)[kCount], const uint32_t (&a)[kWords],
                                         uint32_t b) {
  const uint64_t right = B::AlongOutput(b, 0);
#pragma unroll
  for (int step = 0; step < kWords / 4; ++step) {
    MultiplyFragments<Along::kOutput>(
        d, a + 4 * step,
        Advance(right, static_cast<uint32_t>(step) * DepthStepBytes(Along::kOutput)), true);
  }
}

// Work is numbered so that a section of heads, whose operands stay in the second-level cache, is
// done before the next one, and within it long pieces before short ones: index = section, piece,
// head in the section. `section`: heads per section; the last one may have fewer.
struct WorkPlan {
  int heads;   // of all sequences
  int pieces;  // per head
  int section;
  __device__ __forceinline__ int count() const { return heads * pieces; }
};
struct Work {
  int head, piece;
};
__device__ __forceinline__ Work WorkAt(const WorkPlan& plan, int index) {
  const int per_section = plan.section * plan.pieces;
  const int first = index / per_section * plan.section, left = index % per_section;
  const int heads = plan.heads - first < plan.section ? plan.heads - first : plan.section;
  return {first + left % heads, left / heads};
}

// Blocks take work in order of its index, from the counter schedule[0]: work that waits for earlier
// work waits for blocks that run already. The last block to finish resets both counters, for the
// next launch.
__device__ __forceinline__ int NextWork(int* schedule) { return atomicAdd(schedule, 1); }
__device__ __forceinline__ void FinishWork(int* schedule) {
  if (atomicAdd(schedule + 1, 1) == static_cast<int>(gridDim.x) - 1) schedule[0] = schedule[1] = 0;
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_HOPPER_CUH_
