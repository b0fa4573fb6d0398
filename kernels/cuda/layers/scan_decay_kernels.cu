// The exponents and documents of every chunk, once per request, so that the large kernels read them
// ready. About 2 + 20 bytes per token and head: a few per cent of the scan's traffic.
//
// A warp processes one block of 16 tokens of 32 heads. Sums are in FP64, so that differences of
// them stay accurate even if one token's step is much larger than the others'.
#include "kernels/cuda/layers/scan_element.cuh"
#include "kernels/cuda/layers/scan_tile.cuh"

namespace nibble::gpu {
namespace {

using namespace scan;

constexpr int kHeads = 32;  // per thread block

// ln(1 + e^x) without overflow, and with the relative accuracy of e^x far below zero.
__device__ float Softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

__device__ void FindDocuments(const ScanArgs& args, const ChunkPlace& chunk, int tokens) {
  const int t = static_cast<int>(threadIdx.x);
  if (t >= tokens) return;
  ScanChunkInfo& info = args.chunks[chunk.index];
  const int32_t* doc = args.doc_begin == nullptr ? nullptr : args.doc_begin + chunk.row;
  const auto enters = [&](int token) { return (doc == nullptr ? 0 : doc[token]) < chunk.begin; };
  if (!enters(t) && (t == 0 || enters(t - 1))) info.entering = t;
  if (t != tokens - 1) return;
  if (enters(t)) info.entering = tokens;
  info.tokens = tokens;
  const int last = doc == nullptr ? 0 : doc[t] - chunk.begin;
  info.last_doc = last > 0 ? last : 0;
  const int next = chunk.begin + kScanChunk;
  info.followed = next < args.length && (doc == nullptr || doc[kScanChunk] < next);
}

__global__ __launch_bounds__(32 * kBlocks) void DecayKernel(const __grid_constant__ ScanArgs args) {
  __shared__ double totals[kBlocks][kHeads];
  const int blocks = (args.heads + kHeads - 1) / kHeads;
  const ChunkPlace chunk = PlaceOfChunk(args, blockIdx.x / blocks);
  const int64_t rest = args.length - chunk.begin;
  const int tokens = static_cast<int>(rest < kScanChunk ? rest : kScanChunk);
  const int part = static_cast<int>(blockIdx.x % blocks);
  if (part == 0) FindDocuments(args, chunk, tokens);

  const int block = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int head = part * kHeads + lane;
  const bool present = head < args.heads;
  float delta[kBlock];
  double sum[kBlock], total = 0;
  {
    float raw[kBlock];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      const int t = block * kBlock + i;
      raw[i] = present && t < tokens
                   ? ElementAt(args.dt, args.f32, (chunk.row + t) * args.dt_stride + head)
                   : 0.0f;
    }
    const float bias = present ? args.dt_bias[head] : 0.0f;
    const double rate =
        present ? -exp(static_cast<double>(args.a_log[head])) * 1.4426950408889634 : 0.0;
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      delta[i] = block * kBlock + i < tokens ? Softplus(raw[i] + bias) : 0.0f;
      total += static_cast<double>(delta[i]) * rate;
      sum[i] = total;
    }
  }
  totals[block][lane] = total;
  __syncthreads();
  if (!present) return;
  double before = 0, all = 0;
  for (int b = 0; b < kBlocks; ++b) {
    if (b < block) before += totals[b][lane];
    all += totals[b][lane];
  }
  float* to = args.decays + (chunk.index * args.heads + head) * (ScanDecays::kArrays * kScanChunk) +
              block * kBlock;
#pragma unroll
  for (int i = 0; i < kBlock; i += 4) {
    float high[4], low[4], enter[4], leave[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const double s = before + sum[i + j];
      high[j] = static_cast<float>(sum[i + j]);
      low[j] = static_cast<float>(sum[i + j] - high[j]);
      enter[j] = Exp2(static_cast<float>(s));
      leave[j] = Exp2(static_cast<float>(all - s)) * delta[i + j];
    }
    const auto put = [&](int array, const float* x) {
      *reinterpret_cast<float4*>(to + array * kScanChunk + i) = make_float4(x[0], x[1], x[2], x[3]);
    };
    put(ScanDecays::kDelta, delta + i);
    put(ScanDecays::kHigh, high);
    put(ScanDecays::kLow, low);
    put(ScanDecays::kEnter, enter);
    put(ScanDecays::kLeave, leave);
  }
}

}  // namespace

cudaError_t LaunchScanDecays(const ScanArgs& args, cudaStream_t stream) {
  const int64_t blocks = args.chunk_count() * ((args.heads + kHeads - 1) / kHeads);
  return Launch(DecayKernel, dim3(static_cast<unsigned>(blocks)), 32 * kBlocks, 0, stream, args);
}

}  // namespace nibble::gpu
