// The scan's backward pass for shapes, types and alignments that the tile kernels do not take.
// Slow, and in FP32 throughout; the oracle of the tile kernels on the card.
//
// A thread block has sixteen tokens of a group and goes through its heads; a warp has two of the
// tokens, both as tokens j that write to the state (dx, dB) and as tokens i that read it (dC). The
// formulas are those of scan_backward_inputs.cuh and scan_backward_outputs.cuh. dB and dC are
// summed over heads in memory, each element by one thread. Balances are in FP64: what they cancel
// must not leave a remainder where a token's Δ is large.
#include "kernels/cuda/layers/scan_simple.cuh"

namespace nibble::gpu {
namespace {

using namespace scan;

// The block's tokens t against all tokens k of the chunk; zero where neither depends on the other.
struct PairMatrices {
  float mixed[kBlock][kScanChunk];  // k ≥ t: M_kt (C_k·B_t)
  float pair[kBlock][kScanChunk];   // k ≥ t: M_kt Δ_t (x_t·dy_k); k < t: M_tk Δ_k (x_k·dy_t)
  float balance[kBlock][kScanChunk];  // k > t: W_kt; k < t: −W_tk
};

template <class T>
struct Head {
  const T *x, *b, *c, *dy;  // of the chunk's first token
  int64_t xbc_stride, dy_stride;
  int dim, state;

  // C_i·B_j and x_j·dy_i
  __device__ __forceinline__ float Score(int i, int j) const {
    return Dot(c + i * xbc_stride, b + j * xbc_stride, state);
  }
  __device__ __forceinline__ float Product(int i, int j) const {
    return Dot(x + j * xbc_stride, dy + i * dy_stride, dim);
  }
};

template <class T>
__device__ __forceinline__ void FillPairs(const Head<T>& head, const HeadDecays& decays,
                                          const int* first_seen, int tokens, int first,
                                          PairMatrices& to) {
  for (int at = static_cast<int>(threadIdx.x); at < kBlock * kScanChunk; at += kSimpleThreads) {
    const int row = at / kScanChunk, t = first + row, k = at % kScanChunk;
    const int i = k >= t ? k : t, j = k >= t ? t : k;  // token i reads, j wrote
    float mixed = 0, pair = 0, balance = 0;
    if (i < tokens && j >= first_seen[i]) {
      const float decay = DecayBetween(decays, i, j), score = head.Score(i, j);
      mixed = decay * score;
      pair = decay * decays.delta[j] * head.Product(i, j);
      balance = k == t ? 0.0f : k > t ? pair * score : -pair * score;
    }
    to.mixed[row][k] = mixed;
    to.pair[row][k] = pair;
    to.balance[row][k] = balance;
  }
}

// x·dy of the chunk and ⟨G, S⟩, in a fixed order. All threads call; the result is thread 0's.
template <class T>
__device__ __forceinline__ void SumChunk(const ScanArgs& args, const Head<T>& head, int tokens,
                                         const float* state, const float* gradient, bool carries,
                                         double (&parts)[kSimpleThreads], double& dd,
                                         double& carried) {
  const int thread = static_cast<int>(threadIdx.x);
  double own = 0;
  for (int64_t at = thread; at < int64_t{tokens} * head.dim; at += kSimpleThreads) {
    const int64_t t = at / head.dim, p = at % head.dim;
    own += static_cast<double>(Widen(head.x[t * head.xbc_stride + p])) *
           Widen(head.dy[t * head.dy_stride + p]);
  }
  double own_carried = 0;
  const int64_t size = static_cast<int64_t>(args.state) * args.head_dim;
  for (int64_t at = thread; carries && at < size; at += kSimpleThreads) {
    own_carried += static_cast<double>(state[at]) * gradient[at];
  }
  const auto sum = [&](double x) {
    __syncthreads();
    parts[thread] = x;
    __syncthreads();
    double all = 0;
    for (int i = 0; thread == 0 && i < kSimpleThreads; ++i) all += parts[i];
    return all;
  };
  dd = sum(own);
  carried = sum(own_carried);
}

template <class T>
__global__ __launch_bounds__(kSimpleThreads) void BackwardKernel(
    const __grid_constant__ ScanArgs args) {
  __shared__ HeadDecays decays;
  __shared__ int first_seen[kScanChunk];
  __shared__ PairMatrices pairs;
  __shared__ double parts[kSimpleThreads];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int first = static_cast<int>(blockIdx.x % kTokenBlocks) * kBlock;
  const int group =
      static_cast<int>(blockIdx.x / kTokenBlocks % static_cast<unsigned>(args.groups));
  const SimpleChunk<T> chunk(args, blockIdx.x / kTokenBlocks / static_cast<unsigned>(args.groups));
  const ScanChunkInfo& info = chunk.info;
  const int tokens = info.tokens;
  const bool carries = info.followed && info.entering == tokens;
  const int64_t index = chunk.place.index, row = chunk.place.row;
  const int heads = args.heads / args.groups;

  for (int h = group * heads; h < (group + 1) * heads; ++h) {
    const int64_t column = static_cast<int64_t>(h) * args.head_dim;
    const Head<T> head = {chunk.xbc + column,
                          chunk.xbc + BColumn(args, group),
                          chunk.xbc + CColumn(args, group),
                          chunk.dy + column,
                          args.xbc_stride,
                          args.dy_stride,
                          args.head_dim,
                          args.state};
    const float* head_decays = DecaysOf(args, index, h);
    const float* state = static_cast<const float*>(args.states) + SimpleStateOffset(args, index, h);
    const float* gradient =
        static_cast<const float*>(args.gradients) + SimpleStateOffset(args, index, h);
    float* sums =
        args.token_sums + (index * args.lanes + h) * (ScanTokenSums::kArrays * kScanChunk);
    __syncthreads();
    if (thread < kScanChunk) {
      first_seen[thread] = FirstSeen(args, chunk.place, tokens, thread);
      TokenDecays token;
      token.Fetch(head_decays, static_cast<int>(threadIdx.x));
      token.Publish(decays, static_cast<int>(threadIdx.x));
    }
    __syncthreads();
    if (first == 0) {
      double dd, carried;
      SumChunk(args, head, tokens, state, gradient, carries, parts, dd, carried);
      if (thread == 0) {
        const float over = head_decays[ScanDecays::kEnter * kScanChunk + kScanChunk - 1];
        args.head_sums[index * args.lanes + h] = {
            carries ? static_cast<float>(over * carried) : 0.0f, static_cast<float>(dd)};
      }
    }
    FillPairs(head, decays, first_seen, tokens, first, pairs);
    __syncthreads();

    for (int t = first + thread / 32; t < first + kBlock; t += kSimpleWarps) {
      // Later kernels read zeros for tokens that do not exist.
      double balance = 0;
      float x_du = 0, left = 0, entered = 0;
      const bool leaves = t < tokens && info.followed && t >= info.last_doc;
      const float delta = decays.delta[t];
      const float leave = leaves ? DecayAfter(decays, t) : 0.0f;
      const float enter = head_decays[ScanDecays::kEnter * kScanChunk + t];
      if (t < tokens) {
        const float* mixed = pairs.mixed[t - first];
        const float* pair = pairs.pair[t - first];
        int end = t + 1;  // of the tokens that depend on t
        while (end < tokens && first_seen[end] <= t) ++end;
        for (int k = lane; k < kScanChunk; k += 32) balance += pairs.balance[t - first][k];
        const T* own_x = head.x + t * head.xbc_stride;
        const T* own_dy = head.dy + t * head.dy_stride;
        T* dx = static_cast<T*>(args.dxbc) + (row + t) * args.dxbc_stride + column;
        for (int p = lane; p < head.dim; p += 32) {
          float du = 0;
          for (int k = t; k < end; ++k) {
            du = fmaf(mixed[k], Widen(head.dy[k * head.dy_stride + p]), du);
          }
          const float x = Widen(own_x[p]);
          if (leaves) {
            float from_state = 0;
            for (int n = 0; n < head.state; ++n) {
              from_state = fmaf(gradient[static_cast<int64_t>(n) * head.dim + p],
                                Widen(head.b[t * head.xbc_stride + n]), from_state);
            }
            left = fmaf(x, from_state, left);
            du = fmaf(leave, from_state, du);
          }
          x_du = fmaf(x, du, x_du);
          Narrow(dx[p], fmaf(delta, du, args.d[h] * Widen(own_dy[p])));
        }
        float* to = args.group_sums + (row + t) * (int64_t{2} * args.groups * head.state) +
                    static_cast<int64_t>(group) * head.state;
        T* out = static_cast<T*>(args.dxbc) + (row + t) * args.dxbc_stride;
        const bool begins = h == group * heads, ends = h + 1 == (group + 1) * heads;
        for (int n = lane; n < head.state; n += 32) {
          const int64_t c_offset = static_cast<int64_t>(args.groups) * head.state + n;
          float db = begins ? 0.0f : to[n], dc = begins ? 0.0f : to[c_offset];
          for (int k = t; k < end; ++k) {
            db = fmaf(pair[k], Widen(head.c[k * head.xbc_stride + n]), db);
          }
          for (int k = first_seen[t]; k <= t; ++k) {
            dc = fmaf(pair[k], Widen(head.b[k * head.xbc_stride + n]), dc);
          }
          if (leaves) {
            float from_state = 0;
            for (int p = 0; p < head.dim; ++p) {
              from_state = fmaf(gradient[static_cast<int64_t>(n) * head.dim + p], Widen(own_x[p]),
                                from_state);
            }
            db = fmaf(leave * delta, from_state, db);
          }
          if (t < info.entering) {
            float from_state = 0;
            for (int p = 0; p < head.dim; ++p) {
              from_state =
                  fmaf(state[static_cast<int64_t>(n) * head.dim + p], Widen(own_dy[p]), from_state);
            }
            entered = fmaf(Widen(head.c[t * head.xbc_stride + n]), from_state, entered);
            dc = fmaf(enter, from_state, dc);
          }
          to[n] = db;
          to[c_offset] = dc;
          if (ends) {
            Narrow(out[BColumn(args, group) + n], db);
            Narrow(out[CColumn(args, group) + n], dc);
          }
        }
      }
      balance = SumOfWarp(balance);
      x_du = SumOfWarp(x_du);
      left = SumOfWarp(left);
      entered = SumOfWarp(entered);
      if (lane == 0) {
        if (leaves) balance += static_cast<double>(leave * delta) * left;
        args.balances[(index * args.lanes + h) * kScanChunk + t] = balance;
        sums[ScanTokenSums::kDelta * kScanChunk + t] = x_du;
        sums[ScanTokenSums::kEntered * kScanChunk + t] = t < info.entering ? entered * enter : 0.0f;
      }
    }
  }
}

}  // namespace

cudaError_t LaunchScanSimpleBackward(const ScanArgs& args, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(args.chunk_count() * args.groups * kTokenBlocks));
  return args.f32 ? Launch(BackwardKernel<float>, blocks, kSimpleThreads, 0, stream, args)
                  : Launch(BackwardKernel<uint16_t>, blocks, kSimpleThreads, 0, stream, args);
}

}  // namespace nibble::gpu
