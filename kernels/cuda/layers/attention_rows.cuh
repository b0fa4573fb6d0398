// Operations of the attention kernels on accumulator fragments: masks, the online softmax, rounding
// and stores of rows. Fragments are those of warp_mma.cuh; a warpgroup's accumulator (wgmma) has
// the same layout, 16 rows per warp.
//
// Thread-safety: device code; all lanes of a warp call together.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_ROWS_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_ROWS_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/layers/warp_mma.cuh"

namespace nibble::gpu {

inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2 = 0.693147180559945f;
// Initial value of a row's largest score: finite, so that rows without visible keys stay free of
// NaN.
inline constexpr float kEmptyTop = -3.0e38f;

// The columns [first, last] of a block that the lane's two rows (row and row + 8 of the fragment)
// may attend to, less the lane's own first column: column 8j + e of the lane is visible if
// first <= 8j + e <= last.
struct VisibleColumns {
  int first[2];
  int last[2];
};

template <int kCount>
__device__ __forceinline__ bool IsVisible(const VisibleColumns& visible, int index) {
  const int column = index / 4 * 8 + index % 2, half = index % 4 / 2;
  return column >= visible.first[half] && column <= visible.last[half];
}

// Scores outside of the visible columns become -inf.
template <int kCount>
__device__ __forceinline__ void MaskScores(float (&s)[kCount], const VisibleColumns& visible) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (!IsVisible<kCount>(visible, i)) s[i] = -INFINITY;
  }
}
// Probabilities and their gradients there become zero.
template <int kCount>
__device__ __forceinline__ void MaskToZero(float (&x)[kCount], const VisibleColumns& visible) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (!IsVisible<kCount>(visible, i)) x[i] = 0.0f;
  }
}

// Two rows of a lane in the online softmax, in units of log2.
struct SoftmaxRows {
  float top[2] = {kEmptyTop, kEmptyTop};  // the largest factor · q·k so far, the same in a quad
  float sum[2] = {0.0f, 0.0f};  // Σ 2^(factor · q·k − top) over the lane's own columns
};

// One step: scores in, probabilities out. `shrink`: the factor of earlier results. NaN scores are
// left out of the maximum and make the probability NaN.
template <int kCount>
__device__ __forceinline__ void SoftmaxStep(float (&s)[kCount], float factor, SoftmaxRows& rows,
                                            float (&shrink)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest[2] = {s[2 * half], s[2 * half + 1]};
#pragma unroll
    for (int i = 4; i < kCount; i += 4) {
      largest[0] = fmaxf(largest[0], s[i + 2 * half]);
      largest[1] = fmaxf(largest[1], s[i + 2 * half + 1]);
    }
    float row = fmaxf(largest[0], largest[1]);
    row = fmaxf(row, FromLane(row, 1));
    row = fmaxf(row, FromLane(row, 2));
    const float top = fmaxf(rows.top[half], row * factor);
    shrink[half] = Exp2(rows.top[half] - top);
    rows.top[half] = top;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float top = rows.top[half];
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[i + 2 * half + e];
        x = Exp2(__fmaf_rn(x, factor, -top));
        sum[e] += x;
      }
    }
    rows.sum[half] = __fmaf_rn(rows.sum[half], shrink[half], sum[0] + sum[1]);
  }
}

template <int kCount>
__device__ __forceinline__ void ScaleRows(float (&x)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] *= factor[i % 4 / 2];
}

// Completes the sums over the quad; returns 1 / sum of both rows, and the rows' ln Σ exp.
__device__ __forceinline__ void FinishSoftmax(SoftmaxRows& rows, float (&inverse)[2],
                                              float (&lse)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half];
    sum += FromLane(sum, 1);
    sum += FromLane(sum, 2);
    inverse[half] = 1.0f / sum;
    lse[half] = __fmaf_rn(rows.top[half], kLn2, logf(sum));
  }
}

// The accumulator as fragments a of the next multiplication: a[4k … 4k + 3] are columns
// 16k … 16k + 15.
template <int kCount>
__device__ __forceinline__ void RoundToFragments(const float (&x)[kCount],
                                                 uint32_t (&a)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 8) {
    a[i / 2] = Bf16Pair(x[i], x[i + 1]);
    a[i / 2 + 1] = Bf16Pair(x[i + 2], x[i + 3]);
    a[i / 2 + 2] = Bf16Pair(x[i + 4], x[i + 5]);
    a[i / 2 + 3] = Bf16Pair(x[i + 6], x[i + 7]);
  }
}

// The larger of `a` and the magnitudes of two BF16; NaN is left out.
__device__ __forceinline__ float LargerOfPair(float a, uint32_t pair) {
  const float low = Magnitude(FromBits<float>(pair << 16));
  const float high = Magnitude(FromBits<float>(pair & 0xffff0000u));
  return fmaxf(fmaxf(a, low), high);
}

// Transposes the 4×4 words of a quad: word i becomes word `quad` of lane i.
__device__ __forceinline__ void TransposeQuad(uint32_t (&w)[4], int quad) {
#pragma unroll
  for (int mask = 1; mask <= 2; mask *= 2) {
    const bool odd = (quad & mask) != 0;
    // Word pairs (i, i + mask): each lane keeps one of the two and sends the other.
    const int second = mask == 1 ? 2 : 1;
    const uint32_t sent0 = odd ? w[0] : w[mask];
    const uint32_t sent1 = odd ? w[second] : w[second + mask];
    const uint32_t got0 = FromLane(sent0, mask), got1 = FromLane(sent1, mask);
    w[0] = odd ? got0 : w[0];
    w[mask] = odd ? w[mask] : got0;
    w[second] = odd ? got1 : w[second];
    w[second + mask] = odd ? w[second + mask] : got1;
  }
}

// Rounds one half (rows `row` or `row + 8`) of an accumulator times `factor` and stores it as a row
// of kColumns BF16 at `to`, 16-byte aligned, in pieces of 16 bytes. Lanes whose row is not
// `present` store nothing. Returns the larger of `amax` and the magnitudes stored.
template <int kColumns, bool kAmax>
__device__ __forceinline__ float StoreRow(const float* x, int half, float factor, uint16_t* to,
                                          bool present, int quad, float amax) {
  constexpr int kWords = kColumns / 8;
#pragma unroll
  for (int j = 0; j + 4 <= kWords; j += 4) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = x + 4 * (j + i) + 2 * half;
      w[i] = Bf16Pair(pair[0] * factor, pair[1] * factor);
      if (kAmax && present) amax = LargerOfPair(amax, w[i]);
    }
    TransposeQuad(w, quad);
    if (present)
      *reinterpret_cast<uint4*>(to + 8 * (j + quad)) = make_uint4(w[0], w[1], w[2], w[3]);
  }
#pragma unroll
  for (int j = kWords / 4 * 4; j < kWords; ++j) {
    const float* pair = x + 4 * j + 2 * half;
    const uint32_t word = Bf16Pair(pair[0] * factor, pair[1] * factor);
    if (kAmax && present) amax = LargerOfPair(amax, word);
    if (present) *reinterpret_cast<uint32_t*>(to + 8 * j + 2 * quad) = word;
  }
  return amax;
}

// The largest q < length with doc_begin[q] <= token; token itself is one, and doc_begin never
// decreases.
__device__ __forceinline__ int LastQuery(const int32_t* doc_begin, int token, int length) {
  int low = token, high = length - 1;
  while (low < high) {
    const int middle = low + (high - low + 1) / 2;
    if (doc_begin[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Adds the warp's largest magnitude to the result; an order-free maximum of non-negative floats.
__device__ __forceinline__ void PublishAmax(float* amax, float value, int lane) {
  const uint32_t largest = __reduce_max_sync(0xffffffffu, BitsOf<float>(value));
  if (lane == 0 && largest != 0) atomicMax(reinterpret_cast<unsigned*>(amax), largest);
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_ROWS_CUH_
