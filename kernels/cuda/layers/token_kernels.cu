// Limits: the embedding reads and writes each row once; its backward pass also sorts one 8-byte key
// per row; cross entropy reads the logits once and writes the gradient once. The rows of all blocks
// that run at once do not fit the second-level cache, so a block keeps its row in shared memory.
#include "kernels/cuda/layers/token_kernels.h"

#include <cfloat>
#include <type_traits>

#include "kernels/cuda/layers/block_sum.cuh"
#include "kernels/cuda/layers/eight.cuh"

namespace nibble::gpu {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void PositionsKernel(int64_t first, int64_t rows,
                                                            int64_t length, int64_t base,
                                                            const int32_t* doc_begin,
                                                            int32_t* positions) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows) return;
  const int64_t begin = doc_begin == nullptr ? 0 : doc_begin[first + i];
  positions[first + i] = static_cast<int32_t>(base + i % length - begin);
}

template <class From, class To, bool kWide>
__global__ __launch_bounds__(kThreads) void EmbeddingKernel(
    const __grid_constant__ EmbeddingForward request, const int32_t* positions, DeviceFault* fault,
    int across) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = thread / across, c = kEight * (thread % across);
  if (row >= request.out.rows) return;
  const int64_t count = request.out.cols - c;
  const int32_t token = request.tokens[row];
  if (token < 0 || token >= request.table.rows) {
    if (c == 0) Report(fault, FaultKind::kEmbeddingKey, row, token, request.table.rows);
    return;
  }
  float x[kEight];
  LoadEight<kWide>(RowOf<From>(request.table, token) + c, count, x);
  if (positions != nullptr) {
    const int32_t position = positions[row];
    if (position < 0 || position >= request.positions.rows) {
      if (c == 0) Report(fault, FaultKind::kEmbeddingKey, row, position, request.positions.rows);
      return;
    }
    float y[kEight];
    LoadEight<kWide>(RowOf<From>(request.positions, position) + c, count, y);
#pragma unroll
    for (int i = 0; i < kEight; ++i) x[i] = Rounded<To>(x[i]) + Rounded<To>(y[i]);
  }
  StoreEight<kWide>(RowOf<To>(request.out, row) + c, count, x);
}

// Sorting: bitonic, of distinct numbers (key, row), so that the result is unique.
// Tiles of 4096 are sorted in shared memory.
constexpr int kTile = 4096;
constexpr int kSortThreads = 1024;
constexpr uint64_t kNoKey = ~uint64_t{0};

__global__ __launch_bounds__(kThreads) void MakeKeysKernel(const int32_t* keys, int64_t rows,
                                                           int64_t bound, uint64_t* sorted,
                                                           int64_t count, DeviceFault* fault) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  uint64_t entry = kNoKey;
  if (i < rows) {
    const int32_t key = keys[i];
    if (key < 0 || key >= bound) {
      Report(fault, FaultKind::kEmbeddingKey, i, key, bound);
    } else {
      entry = static_cast<uint64_t>(key) << 32 | static_cast<uint64_t>(i);
    }
  }
  sorted[i] = entry;
}

__device__ __forceinline__ void Exchange(uint64_t& a, uint64_t& b, bool ascending) {
  if ((a > b) != ascending) return;
  const uint64_t old = a;
  a = b;
  b = old;
}

// The lower of the elements of pair number `pair` at a distance, which is a power of two.
template <class Int>
__device__ __forceinline__ Int LowerOf(Int pair, Int distance) {
  return 2 * pair - (pair & (distance - 1));
}

// The steps of distance < kTile of the merges of `from` … `to` elements.
__global__ __launch_bounds__(kSortThreads) void SortTilesKernel(uint64_t* sorted, int64_t from,
                                                                int64_t to) {
  __shared__ uint64_t tile[kTile];
  uint64_t* const mine = sorted + static_cast<int64_t>(blockIdx.x) * kTile;
  for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kSortThreads) tile[i] = mine[i];
  __syncthreads();
  for (int64_t size = from; size <= to; size *= 2) {
    for (int64_t distance = size / 2 < kTile / 2 ? size / 2 : kTile / 2; distance > 0;
         distance /= 2) {
      for (int pair = static_cast<int>(threadIdx.x); pair < kTile / 2; pair += kSortThreads) {
        const int step = static_cast<int>(distance);
        const int i = LowerOf(pair, step);
        const int64_t global = static_cast<int64_t>(blockIdx.x) * kTile + i;
        Exchange(tile[i], tile[i + step], (global & size) == 0);
      }
      __syncthreads();
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kSortThreads) mine[i] = tile[i];
}

__global__ __launch_bounds__(kThreads) void SortStepKernel(uint64_t* sorted, int64_t pairs,
                                                           int64_t size, int64_t distance) {
  const int64_t pair = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pair >= pairs) return;
  const int64_t i = LowerOf(pair, distance);
  Exchange(sorted[i], sorted[i + distance], (i & size) == 0);
}

// Equal keys are adjacent in `sorted`: a run. Runs are added in groups of 64 rows. The group that
// begins at index i of `sorted` keeps its sum in row 2 ⌊i / 64⌋ of `partial`, or in the next one if
// it is shorter than 64 and not the first of its run: of such rows no two coincide.
constexpr int64_t kGroup = 64;

__device__ __forceinline__ int64_t FirstOf(const uint64_t* sorted, int64_t count, uint64_t key) {
  int64_t low = 0, high = count;  // the first entry not before key << 32
  const uint64_t wanted = key << 32;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (sorted[middle] < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ __forceinline__ int64_t PartialRow(int64_t begin, int64_t size) {
  return 2 * (begin / kGroup) + (size < kGroup ? 1 : 0);
}

template <class T, bool kWide>
__global__ __launch_bounds__(kThreads) void SumGroupsKernel(
    const __grid_constant__ ConstMatrix from, const uint64_t* __restrict__ sorted,
    float* __restrict__ table, float* __restrict__ partial) {
  const int64_t begin = blockIdx.x, rows = from.rows;
  const uint64_t entry = sorted[begin];
  if (entry == kNoKey) return;
  const uint64_t key = entry >> 32;
  // Most keys are rare: comparing with the previous key shows that this is the first of its run.
  const bool first = begin == 0 || sorted[begin - 1] >> 32 != key;
  const int64_t run = first ? begin : FirstOf(sorted, rows, key);
  if ((begin - run) % kGroup != 0) return;
  int64_t end = begin + 1;
  while (end < rows && end < begin + kGroup && sorted[end] >> 32 == key) ++end;
  const bool last = end == rows || sorted[end] >> 32 != key;
  const bool whole = first && last;
  float* const out = whole ? table + static_cast<int64_t>(key) * from.cols
                           : partial + PartialRow(begin, end - begin) * from.cols;
  for (int64_t c = kEight * static_cast<int64_t>(threadIdx.x); c < from.cols;
       c += kEight * kThreads) {
    const int64_t count = from.cols - c;
    float sums[kEight] = {};
#pragma unroll 4
    for (int64_t i = begin; i < end; ++i) {
      float x[kEight];
      LoadEight<kWide>(RowOf<T>(from, static_cast<int64_t>(sorted[i] & 0xffffffffu)) + c, count, x);
#pragma unroll
      for (int j = 0; j < kEight; ++j) sums[j] += x[j];
    }
    if (whole) {
      float old[kEight];
      LoadEight<kWide>(static_cast<const float*>(out) + c, count, old);
#pragma unroll
      for (int j = 0; j < kEight; ++j) sums[j] = old[j] + sums[j];
    }
    StoreEight<kWide>(out + c, count, sums);
  }
}

// Adds the groups of runs of more than one.
__global__ __launch_bounds__(kThreads) void AddGroupsKernel(const uint64_t* __restrict__ sorted,
                                                            int64_t rows, int64_t cols,
                                                            float* __restrict__ table,
                                                            const float* __restrict__ partial) {
  const int64_t run = static_cast<int64_t>(blockIdx.x);
  const uint64_t entry = sorted[run];
  if (entry == kNoKey) return;
  const uint64_t key = entry >> 32;
  if (run > 0 && sorted[run - 1] >> 32 == key) return;
  if (run + kGroup >= rows || sorted[run + kGroup] >> 32 != key) return;
  const int64_t end = FirstOf(sorted, rows, key + 1);
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    float sum = 0;
    for (int64_t begin = run; begin < end; begin += kGroup) {
      const int64_t size = end - begin < kGroup ? end - begin : kGroup;
      sum += partial[PartialRow(begin, size) * cols + c];
    }
    table[static_cast<int64_t>(key) * cols + c] += sum;
  }
}

constexpr int kEntropyThreads = 512;
// Eights of logits that a thread keeps in shared memory between its two passes, at most.
constexpr int kMostKept = 14;
constexpr size_t kKeptBytes = kEntropyThreads * kEight * sizeof(float);  // of a block's eights

// e^x for x ≤ 0 with a relative error of |x| 2^-24 and two units in the last place more.
__device__ __forceinline__ float FastExp(float x) { return exp2f(x * 1.4426950408889634f); }

// The sum of e^(x − max) so far, and the largest x.
struct SoftSum {
  float max, sum;
};
__device__ __forceinline__ SoftSum Joined(SoftSum a, SoftSum b) {
  const float max = fmaxf(a.max, b.max);
  return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}

// A thread's eights in shared memory: its own alone, so that no barrier orders them.
__device__ __forceinline__ float4* KeptAt(int index) {
  return reinterpret_cast<float4*>(DynamicShared()) + 2 * index * kEntropyThreads + threadIdx.x;
}
__device__ __forceinline__ void Keep(int index, const float (&x)[kEight]) {
  float4* const at = KeptAt(index);
  at[0] = make_float4(x[0], x[1], x[2], x[3]);
  at[kEntropyThreads] = make_float4(x[4], x[5], x[6], x[7]);
}
__device__ __forceinline__ void GetKept(int index, float (&x)[kEight]) {
  const float4* const at = KeptAt(index);
  const float4 low = at[0], high = at[kEntropyThreads];
  const float values[kEight] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < kEight; ++i) x[i] = values[i];
}

// A block per row, of which each thread keeps its first `kept` eights. A NaN does not become the
// maximum but makes the sum NaN; so does an infinity.
template <class From, class To, bool kWide>
__global__ __launch_bounds__(kEntropyThreads, 2) void CrossEntropyKernel(
    const __grid_constant__ CrossEntropy request, DeviceFault* fault, int kept) {
  __shared__ float maxima[kMostWarps], sums[kMostWarps];
  const int64_t row = blockIdx.x, vocab = request.logits.cols;
  const From* const x = RowOf<From>(request.logits, row);
  To* const dx = request.dlogits.data == nullptr ? nullptr : RowOf<To>(request.dlogits, row);
  const int32_t target = request.targets[row];
  const int64_t step = kEight * kEntropyThreads;
  const int64_t begin = kEight * static_cast<int64_t>(threadIdx.x);
  if (target < 0 || target >= vocab) {
    if (threadIdx.x == 0) {
      request.loss[row] = 0;
      if (target != -1) Report(fault, FaultKind::kTarget, row, target, vocab);
    }
    if (dx == nullptr) return;
    const float zeros[kEight] = {};
    for (int64_t c = begin; c < vocab; c += step) StoreEight<kWide>(dx + c, vocab - c, zeros);
    return;
  }
  // This thread's eights begin at begin + i · step.
  const int eights = begin < vocab ? static_cast<int>((vocab - begin + step - 1) / step) : 0;
  constexpr int kLoadedAtOnce = kWide && sizeof(From) == 4 ? 4 : 2;
  SoftSum mine = {-FLT_MAX, 0.0f};
  for (int first = 0; first < eights; first += kLoadedAtOnce) {
    float v[kLoadedAtOnce][kEight];
#pragma unroll
    for (int a = 0; a < kLoadedAtOnce; ++a) {
      const int64_t c = begin + (first + a) * step;
      if (first + a < eights) LoadEight<kWide>(x + c, vocab - c, v[a]);
    }
#pragma unroll
    for (int a = 0; a < kLoadedAtOnce; ++a) {
      if (first + a >= eights) break;
      const int64_t count = vocab - begin - (first + a) * step;
      float max = mine.max;
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        if (kWide || i < count) max = fmaxf(max, v[a][i]);
      }
      float sum = mine.sum * FastExp(mine.max - max);
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        if (kWide || i < count) sum += FastExp(v[a][i] - max);
      }
      mine = {max, sum};
      if (first + a < kept) Keep(first + a, v[a]);
    }
  }
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    mine = Joined(mine, {FromLane(mine.max, mask), FromLane(mine.sum, mask)});
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
    maxima[warp] = mine.max;
    sums[warp] = mine.sum;
  }
  __syncthreads();
  SoftSum all = {maxima[0], sums[0]};
#pragma unroll
  for (int w = 1; w < kEntropyThreads / kWarp; ++w) all = Joined(all, {maxima[w], sums[w]});
  const float of_target = Widened(x[target]) - all.max;
  if (threadIdx.x == 0) request.loss[row] = logf(all.sum) - of_target;
  if (dx == nullptr) return;
  // The gradient may overwrite the logits: every thread has read the target's logit by now.
  __syncthreads();
  const float factor = request.scale / all.sum;
  // From the last, which are still in the second-level cache if they were not kept.
#pragma unroll 2
  for (int e = eights - 1; e >= 0; --e) {
    const int64_t c = begin + e * step, count = vocab - c;
    float v[kEight];
    if (e < kept) {
      GetKept(e, v);
    } else {
      LoadEight<kWide>(x + c, count, v);
    }
#pragma unroll
    for (int i = 0; i < kEight; ++i) v[i] = FastExp(v[i] - all.max) * factor;
    if (target - c >= 0 && target - c < kEight) {
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        if (target - c == i) v[i] -= request.scale;
      }
    }
    StoreEight<kWide>(dx + c, count, v);
  }
}

dim3 BlocksOf(int64_t threads) {
  return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
}

}  // namespace

cudaError_t LaunchPositions(int64_t first, int64_t rows, int64_t length, int64_t base,
                            const int32_t* doc_begin, int32_t* positions, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  return Launch(PositionsKernel, BlocksOf(rows), kThreads, 0, stream, first, rows, length, base,
                doc_begin, positions);
}

cudaError_t LaunchEmbedding(const EmbeddingForward& r, const int32_t* positions, DeviceFault* fault,
                            cudaStream_t stream) {
  if (r.out.rows == 0 || r.out.cols == 0) return cudaSuccess;
  const bool wide = InEights(r.table) && InEights(r.positions) && InEights(r.out);
  const int across = static_cast<int>((r.out.cols + kEight - 1) / kEight);
  return WithType(r.table.dtype, [&](auto source) {
    return WithType(r.out.dtype, [&](auto element) {
      return WithBool(wide, [&](auto is_wide) {
        return Launch(
            EmbeddingKernel<decltype(source), decltype(element), decltype(is_wide)::value>,
            BlocksOf(r.out.rows * across), kThreads, 0, stream, r, positions, fault, across);
      });
    });
  });
}

int64_t SortedKeys(int64_t rows) {
  int64_t count = kTile;
  while (count < rows) count *= 2;
  return count;
}
int64_t PartialRows(int64_t rows) { return 2 * (rows / kGroup + 1); }

cudaError_t LaunchAddByKey(const ConstMatrix& from, const int32_t* keys, int64_t bound,
                           float* table, const KeyScratch& scratch, DeviceFault* fault,
                           cudaStream_t stream) {
  if (from.rows == 0 || from.cols == 0) return cudaSuccess;
  const int64_t count = SortedKeys(from.rows);
  const dim3 tiles(static_cast<unsigned>(count / kTile));
  const dim3 rows(static_cast<unsigned>(from.rows));
  cudaError_t error = Launch(MakeKeysKernel, BlocksOf(count), kThreads, 0, stream, keys, from.rows,
                             bound, scratch.sorted, count, fault);
  if (error == cudaSuccess) {
    error = Launch(SortTilesKernel, tiles, kSortThreads, 0, stream, scratch.sorted, int64_t{2},
                   int64_t{kTile});
  }
  for (int64_t size = 2 * kTile; error == cudaSuccess && size <= count; size *= 2) {
    for (int64_t distance = size / 2; error == cudaSuccess && distance >= kTile; distance /= 2) {
      error = Launch(SortStepKernel, BlocksOf(count / 2), kThreads, 0, stream, scratch.sorted,
                     count / 2, size, distance);
    }
    if (error == cudaSuccess) {
      error = Launch(SortTilesKernel, tiles, kSortThreads, 0, stream, scratch.sorted, size, size);
    }
  }
  if (error == cudaSuccess) {
    const uint64_t* const sorted = scratch.sorted;
    error = WithType(from.dtype, [&](auto element) {
      return WithBool(InEights(from) && Aligned(table), [&](auto wide) {
        return Launch(SumGroupsKernel<decltype(element), decltype(wide)::value>, rows, kThreads, 0,
                      stream, from, sorted, table, scratch.partial);
      });
    });
  }
  if (error != cudaSuccess) return error;
  return Launch(AddGroupsKernel, rows, kThreads, 0, stream,
                static_cast<const uint64_t*>(scratch.sorted), from.rows, from.cols, table,
                static_cast<const float*>(scratch.partial));
}

cudaError_t LaunchCrossEntropy(const CrossEntropy& r, DeviceFault* fault, cudaStream_t stream) {
  if (r.logits.rows == 0) return cudaSuccess;
  return WithType(r.logits.dtype, [&](auto source) {
    return WithType(
        r.dlogits.data == nullptr ? r.logits.dtype : r.dlogits.dtype, [&](auto element) {
          return WithBool(InEights(r.logits) && InEights(r.dlogits), [&](auto wide) {
            // Only a gradient has a second pass.
            const int64_t eights = (r.logits.cols * sizeof(float) + kKeptBytes - 1) / kKeptBytes;
            const int kept = r.dlogits.data == nullptr
                                 ? 0
                                 : static_cast<int>(eights < kMostKept ? eights : kMostKept);
            return Launch(
                CrossEntropyKernel<decltype(source), decltype(element), decltype(wide)::value>,
                dim3(static_cast<unsigned>(r.logits.rows)), kEntropyThreads, kept * kKeptBytes,
                stream, r, fault, kept);
          });
        });
  });
}

}  // namespace nibble::gpu
