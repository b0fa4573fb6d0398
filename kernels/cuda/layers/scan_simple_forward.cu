// The scan of whole sequences for shapes, types and alignments that the tile kernels do not take:
// the states that enter the chunks (and, backward, the gradients of those that leave), and y. Slow,
// and in FP32 throughout; the oracle of the tile kernels on the card.
#include "kernels/cuda/layers/scan_simple.cuh"

namespace nibble::gpu {
namespace {

using namespace scan;

// A thread has one element of the states of one head and goes through the chunks of its sequence.
template <class T>
__global__ __launch_bounds__(kSimpleThreads) void StatesKernel(
    const __grid_constant__ ScanArgs args, unsigned parts) {
  const int64_t size = static_cast<int64_t>(args.state) * args.head_dim;
  const int64_t element = int64_t{blockIdx.x % parts} * kSimpleThreads + threadIdx.x;
  if (element >= size) return;
  const int head = static_cast<int>(blockIdx.x / parts % static_cast<unsigned>(args.heads));
  const int64_t sequence = blockIdx.x / parts / static_cast<unsigned>(args.heads);
  const bool forward = blockIdx.y == 0;
  const int n = static_cast<int>(element / args.head_dim);
  const int p = static_cast<int>(element % args.head_dim);
  const int group = head / (args.heads / args.groups);
  const int64_t right_column = (forward ? BColumn(args, group) : CColumn(args, group)) + n;
  const int64_t left_column = static_cast<int64_t>(head) * args.head_dim + p;
  const int64_t left_stride = forward ? args.xbc_stride : args.dy_stride;
  float* out = static_cast<float*>(forward ? args.states : args.gradients) + element;
  const int weights = forward ? ScanDecays::kLeave : ScanDecays::kEnter;

  float sum = 0;
  const int count = args.chunks_per_sequence;
  for (int k = 0; k < count; ++k) {
    const SimpleChunk<T> chunk(args, sequence * count + (forward ? k : count - 1 - k));
    const Step step = StepOf(chunk.info, forward);
    if (step.stores) out[SimpleStateOffset(args, chunk.place.index, head)] = sum;
    if (step.first >= step.end) continue;
    const float* decays = DecaysOf(args, chunk.place.index, head);
    const T* left = (forward ? chunk.xbc : chunk.dy) + left_column;
    const T* right = chunk.xbc + right_column;
    sum = step.carries ? sum * decays[ScanDecays::kEnter * kScanChunk + kScanChunk - 1] : 0.0f;
    for (int t = step.first; t < step.end; ++t) {
      sum = fmaf(Widen(left[t * left_stride]) * decays[weights * kScanChunk + t],
                 Widen(right[t * args.xbc_stride]), sum);
    }
  }
}

// A thread block has sixteen tokens of one head, a warp two of them.
template <class T>
__global__ __launch_bounds__(kSimpleThreads) void ForwardKernel(
    const __grid_constant__ ScanArgs args) {
  __shared__ HeadDecays decays;
  __shared__ int first_seen[kScanChunk];
  __shared__ float mixed[kBlock][kScanChunk];
  const int thread = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(blockIdx.x % kTokenBlocks) * kBlock;
  const int head = static_cast<int>(blockIdx.x / kTokenBlocks % static_cast<unsigned>(args.heads));
  const SimpleChunk<T> chunk(args, blockIdx.x / kTokenBlocks / static_cast<unsigned>(args.heads));
  const int tokens = chunk.info.tokens;
  if (first >= tokens) return;
  const int group = head / (args.heads / args.groups);
  const T* b = chunk.xbc + BColumn(args, group);
  const T* c = chunk.xbc + CColumn(args, group);
  const T* x = chunk.xbc + static_cast<int64_t>(head) * args.head_dim;
  const float* head_decays = DecaysOf(args, chunk.place.index, head);
  if (thread < kScanChunk) {
    first_seen[thread] = FirstSeen(args, chunk.place, tokens, thread);
    TokenDecays token;
    token.Fetch(head_decays, static_cast<int>(threadIdx.x));
    token.Publish(decays, static_cast<int>(threadIdx.x));
  }
  __syncthreads();
  for (int at = thread; at < kBlock * kScanChunk; at += kSimpleThreads) {
    const int i = first + at / kScanChunk, j = at % kScanChunk;
    float m = 0;
    if (i < tokens && j <= i && j >= first_seen[i]) {
      m = DecayBetween(decays, i, j) * decays.delta[j] *
          Dot(c + i * args.xbc_stride, b + j * args.xbc_stride, args.state);
    }
    mixed[i - first][j] = m;
  }
  __syncthreads();
  const float* state =
      static_cast<const float*>(args.states) + SimpleStateOffset(args, chunk.place.index, head);
  const float d = args.d[head];
  for (int i = first + thread / 32; i < first + kBlock && i < tokens; i += kSimpleWarps) {
    const bool enters = i < chunk.info.entering;
    const float enter = head_decays[ScanDecays::kEnter * kScanChunk + i];
    const T* own_c = c + i * args.xbc_stride;
    T* y = static_cast<T*>(args.y) + (chunk.place.row + i) * args.y_stride +
           static_cast<int64_t>(head) * args.head_dim;
    for (int p = thread % 32; p < args.head_dim; p += 32) {
      float sum = 0;
      for (int j = first_seen[i]; j <= i; ++j) {
        sum = fmaf(mixed[i - first][j], Widen(x[j * args.xbc_stride + p]), sum);
      }
      if (enters) {
        float from_state = 0;
        for (int n = 0; n < args.state; ++n) {
          from_state =
              fmaf(state[static_cast<int64_t>(n) * args.head_dim + p], Widen(own_c[n]), from_state);
        }
        sum = fmaf(enter, from_state, sum);
      }
      Narrow(y[p], fmaf(d, Widen(x[i * args.xbc_stride + p]), sum));
    }
  }
}

template <class T>
cudaError_t LaunchStates(const ScanArgs& args, bool gradients, cudaStream_t stream) {
  const int64_t size = static_cast<int64_t>(args.state) * args.head_dim;
  const int64_t parts = (size + kSimpleThreads - 1) / kSimpleThreads;
  return Launch(StatesKernel<T>,
                dim3(static_cast<unsigned>(parts * args.heads * args.sequences), gradients ? 2 : 1),
                kSimpleThreads, 0, stream, args, static_cast<unsigned>(parts));
}

}  // namespace

cudaError_t LaunchScanSimpleStates(const ScanArgs& args, bool gradients, cudaStream_t stream) {
  return args.f32 ? LaunchStates<float>(args, gradients, stream)
                  : LaunchStates<uint16_t>(args, gradients, stream);
}

cudaError_t LaunchScanSimpleForward(const ScanArgs& args, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(args.chunk_count() * args.heads * kTokenBlocks));
  return args.f32 ? Launch(ForwardKernel<float>, blocks, kSimpleThreads, 0, stream, args)
                  : Launch(ForwardKernel<uint16_t>, blocks, kSimpleThreads, 0, stream, args);
}

}  // namespace nibble::gpu
