// The gradients of dt and of the scan's parameters, from the sums per token that the backward pass
// leaves. With k a token of a chunk and da_k the gradient of Δ_k A:
//
//   da_k = Σ_{t<k} balance_t + Σ_{t≥k} e_t + carried
//   d(raw dt)_k = (x_k·du_k + A da_k) σ_k
//
// where σ, the slope of softplus, is 1 − exp(−Δ). balance_t is the change of the sum Σ_{i≥k>j} W_ij
// from k = t to k = t + 1: the pairs of token t that enter it minus those that leave it. Sums are
// in FP64, in a fixed order. About 16 + 2 bytes per token and head.
//
// Every term of da_k has decayed over token k, by e^(Δ_k A). Where that is below kNothingLeft, da_k
// is zero and not computed: the sums cancel only up to the rounding of their states and products,
// which a large Δ_k would multiply.
#include "kernels/cuda/layers/scan_element.cuh"
#include "kernels/cuda/layers/scan_tile.cuh"

namespace nibble::gpu {
namespace {

using namespace scan;

constexpr int kWarps = 8;
constexpr int kHeads = 32;                 // per thread block
constexpr int kPerLane = kScanChunk / 32;  // tokens
constexpr int kRow = kHeads + 1;           // of the staged gradients
constexpr double kNothingLeft = -24;       // ln of 4e-11

// Sums over the warp's lanes before this one, or after it, and over all of them.
struct WarpSums {
  double before, after, all;
};
__device__ __forceinline__ WarpSums SumLanes(double x) {
  const unsigned lane = threadIdx.x % 32;
  WarpSums sums = {0, 0, x};
  // After each round `all` is the sum over the lane's group of 2, 4, … lanes.
#pragma unroll
  for (unsigned mask = 1; mask < 32; mask *= 2) {
    const double other = FromLane(sums.all, mask);
    if (lane & mask) {
      sums.before = other + sums.before;
    } else {
      sums.after += other;
    }
    sums.all = lane & mask ? other + sums.all : sums.all + other;
  }
  return sums;
}

__global__ __launch_bounds__(32 * kWarps) void TokenGradientKernel(
    const __grid_constant__ ScanArgs args) {
  __shared__ float staged[kScanChunk * kRow];
  const int blocks = (args.heads + kHeads - 1) / kHeads;
  const ChunkPlace chunk = PlaceOfChunk(args, blockIdx.x / blocks);
  const int head_begin = static_cast<int>(blockIdx.x % blocks) * kHeads;
  const int tokens = args.chunks[chunk.index].tokens;
  const int warp = static_cast<int>(threadIdx.x / 32), first = threadIdx.x % 32 * kPerLane;
  for (int at = warp; at < kHeads && head_begin + at < args.heads; at += kWarps) {
    const int head = head_begin + at;
    double balance[kPerLane] = {}, from_x[kPerLane] = {}, entered[kPerLane] = {};
    double carried = 0, dd = 0;
    for (int slice = 0; slice < args.slices; ++slice) {
      const int64_t lane = chunk.index * args.lanes + head * args.slices + slice;
      const float* from = args.token_sums + lane * (ScanTokenSums::kArrays * kScanChunk) + first;
      const auto add = [&](int array, double(&to)[kPerLane]) {
        const float4 x = *reinterpret_cast<const float4*>(from + array * kScanChunk);
        to[0] += x.x;
        to[1] += x.y;
        to[2] += x.z;
        to[3] += x.w;
      };
      if (args.balances == nullptr) {
        add(ScanTokenSums::kBalance, balance);
      } else {
        for (int i = 0; i < kPerLane; ++i)
          balance[i] += args.balances[lane * kScanChunk + first + i];
      }
      add(ScanTokenSums::kDelta, from_x);
      add(ScanTokenSums::kEntered, entered);
      carried += args.head_sums[lane].carried;
      dd += args.head_sums[lane].dd;
    }
    const float4 deltas = *reinterpret_cast<const float4*>(DecaysOf(args, chunk.index, head) +
                                                           ScanDecays::kDelta * kScanChunk + first);
    const float delta[kPerLane] = {deltas.x, deltas.y, deltas.z, deltas.w};
    const double rate = -exp(static_cast<double>(args.a_log[head]));

    double lane_balance = 0, lane_entered = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      lane_balance += balance[i];
      lane_entered += entered[i];
    }
    double before = SumLanes(lane_balance).before;
    double after = SumLanes(lane_entered).after + lane_entered;
    double ddt = 0, da_delta = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const double da = rate * delta[i] < kNothingLeft ? 0.0 : before + after + carried;
      before += balance[i];
      after -= entered[i];
      const double raw = (from_x[i] + rate * da) * -static_cast<double>(expm1f(-delta[i]));
      ddt += raw;
      da_delta += da * static_cast<double>(delta[i]);
      staged[(first + i) * kRow + at] = static_cast<float>(raw);
    }
    ddt = SumLanes(ddt).all;
    da_delta = SumLanes(da_delta).all;
    if (threadIdx.x % 32 == 0) {
      args.totals[chunk.index * args.heads + head] = {ddt, da_delta * rate, dd};
    }
  }
  __syncthreads();
  const int head = static_cast<int>(threadIdx.x % kHeads);
  if (head_begin + head >= args.heads) return;
  for (int t = warp; t < tokens; t += kWarps) {
    SetElementAt(args.ddt, args.f32, (chunk.row + t) * args.ddt_stride + head_begin + head,
                 staged[t * kRow + head]);
  }
}

// A warp sums one head over the chunks.
__global__ __launch_bounds__(32) void TotalKernel(const ScanTotals* totals, int64_t chunks,
                                                  int heads, float* ddt_bias, float* da_log,
                                                  float* dd) {
  const int head = static_cast<int>(blockIdx.x);
  ScanTotals sum = {};
  for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += 32) {
    const ScanTotals& from = totals[chunk * heads + head];
    sum.ddt += from.ddt;
    sum.da_log += from.da_log;
    sum.dd += from.dd;
  }
  const double ddt_all = SumLanes(sum.ddt).all, da_log_all = SumLanes(sum.da_log).all;
  const double dd_all = SumLanes(sum.dd).all;
  if (threadIdx.x != 0) return;
  ddt_bias[head] = static_cast<float>(ddt_bias[head] + ddt_all);
  da_log[head] = static_cast<float>(da_log[head] + da_log_all);
  dd[head] = static_cast<float>(dd[head] + dd_all);
}

}  // namespace

cudaError_t LaunchScanTokenGradients(const ScanArgs& args, cudaStream_t stream) {
  const int64_t blocks = args.chunk_count() * ((args.heads + kHeads - 1) / kHeads);
  return Launch(TokenGradientKernel, dim3(static_cast<unsigned>(blocks)), 32 * kWarps, 0, stream,
                args);
}

cudaError_t LaunchScanTotals(const ScanTotals* totals, int64_t chunks, int heads, float* ddt_bias,
                             float* da_log, float* dd, cudaStream_t stream) {
  return Launch(TotalKernel, dim3(static_cast<unsigned>(heads)), 32, 0, stream, totals, chunks,
                heads, ddt_bias, da_log, dd);
}

}  // namespace nibble::gpu
