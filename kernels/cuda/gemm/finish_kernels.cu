// Alpha from figures in device memory, and the pass that applies line scales to sums.
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/gemm/gemm_kernels.h"
#include "kernels/cuda/gemm/sum_finish.cuh"

namespace nibble::gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kRows = 4;  // per thread, so that several loads are in flight

__global__ void Alpha(float alpha, AlphaPart a, AlphaPart b, float* out) {
  *out = FoldAlpha(alpha, a, b);
}

// A thread finishes 4 columns of kRows rows. In place (c == sums) each element is read and written
// by the same thread.
template <class C, bool kVector>
__global__ __launch_bounds__(kThreads) void Finish(const __grid_constant__ FinishArgs args) {
  const int64_t col = 4 * (int64_t{blockIdx.x} * kThreads + threadIdx.x);
  if (col >= args.cols) return;
  const int count = args.cols - col < 4 ? static_cast<int>(args.cols - col) : 4;
  const float alpha = FoldAlpha(args.alpha, args.alpha_a, args.alpha_b);
  float col_scale[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    col_scale[i] = i < count ? ScaleAt(args.b, col + i, 0) : 1.0f;
  }
  for (int64_t first = int64_t{blockIdx.y} * kRows; first < args.rows;
       first += int64_t{gridDim.y} * kRows) {
    float sums[kRows][4];
    C c[kRows][4] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r;
      if (row >= args.rows) continue;
      FourOf<float, kVector>::Load(args.sums + row * args.sums_stride + col, count, sums[r]);
      if (args.accumulate) {
        FourOf<C, kVector>::Load(static_cast<const C*>(args.c) + row * args.c_stride + col, count,
                                 c[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r;
      if (row >= args.rows) continue;
      const float row_scale = ScaleAt(args.a, args.first_row + row, 0);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        StoreResult(Scaled(sums[r][i], alpha, row_scale, col_scale[i]), args.accumulate, &c[r][i]);
      }
      FourOf<C, kVector>::Store(c[r], count, static_cast<C*>(args.c) + row * args.c_stride + col);
    }
  }
}

bool IsAligned(const void* pointer, int64_t stride_bytes, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0 &&
         stride_bytes % bytes == 0;
}

}  // namespace

cudaError_t LaunchAlpha(float alpha, const AlphaPart& a, const AlphaPart& b, float* out,
                        cudaStream_t stream) {
  return Launch(Alpha, dim3(1), 1, 0, stream, alpha, a, b, out);
}

cudaError_t LaunchFinish(const FinishArgs& args, cudaStream_t stream) {
  const int64_t c_bytes = args.c_bf16 ? 2 : 4;
  const bool vector = args.cols % 4 == 0 && IsAligned(args.sums, 4 * args.sums_stride, 16) &&
                      IsAligned(args.c, c_bytes * args.c_stride, 4 * c_bytes);
  const int64_t across = (args.cols + 4 * kThreads - 1) / (4 * kThreads);
  const int64_t down = (args.rows + kRows - 1) / kRows;
  const dim3 grid(static_cast<unsigned>(across),
                  static_cast<unsigned>(down < 65535 ? down : 65535));
  if (args.c_bf16) {
    return vector ? Launch(Finish<uint16_t, true>, grid, kThreads, 0, stream, args)
                  : Launch(Finish<uint16_t, false>, grid, kThreads, 0, stream, args);
  }
  return vector ? Launch(Finish<float, true>, grid, kThreads, 0, stream, args)
                : Launch(Finish<float, false>, grid, kThreads, 0, stream, args);
}

}  // namespace nibble::gpu
