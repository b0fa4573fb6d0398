// The fast amax pass: one sweep over the source finds the largest |x| (for copies without a
// transform) and the largest value after the Hadamard transform of each 16 rows of a column (for
// column copies with one), whatever the format. Maxima are taken on integers, so the order does not
// matter.
//
// NaN is skipped and counted: in the sweep itself NaN wins every comparison, and a thread that
// finds a maximum at or above infinity examines its values again one by one.
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/exact_block.h"
#include "kernels/cuda/prepare.cuh"
#include "kernels/cuda/quantize_kernels.h"
#include "kernels/cuda/source_load.cuh"

namespace nibble::gpu {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads == kPrepareThreads);

// A thread's result for one of the two kinds of amax.
struct Found {
  uint32_t bits = 0;
  uint32_t non_finite = 0;

  __device__ void Merge(const ExactAmax& other) {
    bits = MaxBits<uint32_t>(bits, other.bits);
    non_finite += other.non_finite;
  }
};

// The larger magnitude of a pair of BF16, as FP32 bits; NaN is above infinity.
__device__ uint32_t PairMagnitudeBits(uint32_t pair) {
  return MaxBits<uint32_t>((pair << 16) & kMagnitudeBits, pair & 0x7fff0000u);
}

// Adds a thread block's result to the copies that need this kind.
__device__ void Publish(const QuantizeArgs& args, bool hadamard, const Found& found) {
  __shared__ uint32_t warp_bits[kThreads / 32];
  const uint32_t bits = __reduce_max_sync(0xffffffffu, found.bits);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warp_bits[threadIdx.x / 32] = bits;
  __syncthreads();
  for (int i = 0; i < args.copies; ++i) {
    const CopyArgs& copy = args.copy[i];
    if (!copy.amax_pass || copy.hadamard != hadamard) continue;
    if (found.non_finite != 0) atomicAdd(&copy.figures->non_finite, found.non_finite);
    if (threadIdx.x == 0) {
      uint32_t block_bits = 0;
      for (uint32_t warp : warp_bits) block_bits = MaxBits<uint32_t>(block_bits, warp);
      atomicMax(&copy.figures->amax_bits, block_bits);
    }
  }
}

// The last thread block to arrive here prepares all copies.
__device__ void FinishPass(const QuantizeArgs& args) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const uint32_t blocks = gridDim.x * gridDim.y;
    last = atomicAdd(&args.copy[0].figures->tickets, 1u) + 1 == blocks;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  PrepareCopies(args);
}

// 16-byte loads, four in flight. A source without gaps is passed as one long row.
template <bool kF32>
__global__ __launch_bounds__(kThreads) void PlainAmax(const __grid_constant__ QuantizeArgs args) {
  constexpr int kPerLoad = kF32 ? 4 : 8;
  constexpr int kLoads = 4;
  const int64_t loads = args.x.cols / kPerLoad;
  Found found;
  for (int64_t row = blockIdx.y; row < args.x.rows; row += gridDim.y) {
    const uint4* from = reinterpret_cast<const uint4*>(static_cast<const char*>(args.x.data) +
                                                       row * args.x.stride * (16 / kPerLoad));
    for (int64_t first = int64_t{blockIdx.x} * (kThreads * kLoads); first < loads;
         first += int64_t{gridDim.x} * (kThreads * kLoads)) {
      uint4 in[kLoads];
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const int64_t at = first + k * kThreads + threadIdx.x;
        in[k] = at < loads ? __ldg(from + at) : make_uint4(0, 0, 0, 0);
        if (!kF32 && args.x.squared_relu) in[k] = SquaredRelu(in[k]);
      }
      uint32_t bits;
      if constexpr (kF32) {
        float largest = 0;
#pragma unroll
        for (int k = 0; k < kLoads; ++k) {
          largest = LargerMagnitude(largest, FromBits<float>(in[k].x));
          largest = LargerMagnitude(largest, FromBits<float>(in[k].y));
          largest = LargerMagnitude(largest, FromBits<float>(in[k].z));
          largest = LargerMagnitude(largest, FromBits<float>(in[k].w));
        }
        bits = BitsOf<float>(largest);
      } else {
        uint32_t pair = 0;
#pragma unroll
        for (int k = 0; k < kLoads; ++k) {
          pair = LargerMagnitudes(pair, LargerMagnitudes(LargerMagnitudes(in[k].x, in[k].y),
                                                         LargerMagnitudes(in[k].z, in[k].w)));
        }
        bits = PairMagnitudeBits(pair);
      }
      if (bits < kInfinityBits) {
        found.bits = MaxBits<uint32_t>(found.bits, bits);
        continue;
      }
      ExactAmax careful;
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const uint32_t word[4] = {in[k].x, in[k].y, in[k].z, in[k].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (kF32) {
            careful.Add(FromBits<float>(word[i]));
          } else {
            careful.Add(FromBits<float>(word[i] << 16));
            careful.Add(FromBits<float>(word[i] & 0xffff0000u));
          }
        }
      }
      found.Merge(careful);
    }
  }
  Publish(args, false, found);
  FinishPass(args);
}

// One column of a thread's tile of 16 rows by 2 columns: the largest value after the transform. The
// sums lack the norm 1/4, which is exact and monotonic, as is rounding to BF16: both can wait until
// after the maximum.
template <int kSecond>
__device__ void HadamardAmax(const uint32_t (&row)[16], const uint32_t* sign_bits, Found& found) {
  constexpr uint32_t kNoSigns[16] = {};
  float v[16];
  LoadColumn<kSecond>(row, sign_bits, v);
  HadamardSumsTile16<float>(v, kNoSigns);
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) largest = LargerMagnitude(largest, v[i]);
  const uint32_t bits = RoundToBf16Bits<float>(largest * 0.25f);
  if (bits < kInfinityBits) {
    found.bits = MaxBits<uint32_t>(found.bits, bits);
    return;
  }
  ExactAmax careful;
#pragma unroll
  for (int i = 0; i < 16; ++i) careful.Add(FromBits<float>(RoundToBf16Bits<float>(v[i] * 0.25f)));
  found.Merge(careful);
}

// A warp takes 16 rows by 64 columns at a time; kPlain: also finds the source's own amax.
template <bool kF32, bool kPlain>
__global__ __launch_bounds__(kThreads,
                             4) void TransformedAmax(const __grid_constant__ QuantizeArgs args,
                                                     int transformed) {
  const Source& x = args.x;
  const uint32_t across = static_cast<uint32_t>((x.cols + 63) / 64);
  const uint32_t units = static_cast<uint32_t>(x.rows / 16) * across;
  const uint32_t warps = gridDim.x * (kThreads / 32);
  const uint32_t* sign_bits = args.copy[transformed].sign_bits;
  Found plain;
  Found hadamard;
  for (uint32_t unit = blockIdx.x * (kThreads / 32) + threadIdx.x / 32; unit < units;
       unit += warps) {
    const int64_t col = int64_t{unit % across} * 64 + 2 * (threadIdx.x % 32);
    if (col >= x.cols) continue;
    const int64_t at = int64_t{unit / across} * 16 * x.stride + col;
    uint32_t row[16];
    if constexpr (kF32) {
      float largest = 0;
      float2 in[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        in[i] = __ldg(
            reinterpret_cast<const float2*>(static_cast<const float*>(x.data) + at + i * x.stride));
        row[i] = Bf16Pair(in[i].x, in[i].y);
        if (kPlain) largest = LargerMagnitude(LargerMagnitude(largest, in[i].x), in[i].y);
      }
      if (kPlain && BitsOf<float>(largest) < kInfinityBits) {
        plain.bits = MaxBits<uint32_t>(plain.bits, BitsOf<float>(largest));
      } else if (kPlain) {
        ExactAmax careful;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          careful.Add(in[i].x);
          careful.Add(in[i].y);
        }
        plain.Merge(careful);
      }
    } else {
      uint32_t largest = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        row[i] = __ldg(reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(x.data) + at +
                                                         i * x.stride));
        if (x.squared_relu) row[i] = SquaredRelu(row[i]);
        if (kPlain) largest = LargerMagnitudes(largest, row[i]);
      }
      const uint32_t bits = PairMagnitudeBits(largest);
      if (kPlain && bits < kInfinityBits) {
        plain.bits = MaxBits<uint32_t>(plain.bits, bits);
      } else if (kPlain) {
        ExactAmax careful;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          careful.Add(FromBits<float>(row[i] << 16));
          careful.Add(FromBits<float>(row[i] & 0xffff0000u));
        }
        plain.Merge(careful);
      }
    }
    HadamardAmax<0>(row, sign_bits, hadamard);
    HadamardAmax<1>(row, sign_bits, hadamard);
  }
  if (kPlain) Publish(args, false, plain);
  Publish(args, true, hadamard);
  FinishPass(args);
}

struct Wanted {
  bool plain = false;
  int transformed = -1;  // index of the copy that needs the amax after its transform
};

Wanted WantedAmax(const QuantizeArgs& args) {
  Wanted wanted;
  for (int i = 0; i < args.copies; ++i) {
    if (!args.copy[i].amax_pass) continue;
    if (args.copy[i].hadamard) {
      wanted.transformed = i;
    } else {
      wanted.plain = true;
    }
  }
  return wanted;
}

}  // namespace

bool TileAmaxTakes(const QuantizeArgs& args) {
  const Wanted wanted = WantedAmax(args);
  if (!wanted.plain && wanted.transformed < 0) return false;
  for (int i = 0; i < args.copies; ++i) {
    const CopyArgs& copy = args.copy[i];
    if (!copy.amax_pass) continue;
    if (copy.line_amax != nullptr || (copy.hadamard && !copy.column) ||
        (copy.hadamard_size != 0 && !copy.hadamard)) {
      return false;
    }
  }
  return IsAligned(args.x) && args.x.cols % 8 == 0;
}

cudaError_t LaunchTileAmax(const QuantizeArgs& args, int processors, cudaStream_t stream) {
  const Wanted wanted = WantedAmax(args);
  const Source& x = args.x;
  if (wanted.transformed >= 0) {
    const int64_t units = x.rows / 16 * ((x.cols + 63) / 64);
    const int64_t blocks = (units + kThreads / 32 - 1) / (kThreads / 32);
    const unsigned grid = static_cast<unsigned>(blocks < processors * 8 ? blocks : processors * 8);
    const auto kernel =
        x.f32 ? (wanted.plain ? TransformedAmax<true, true> : TransformedAmax<true, false>)
              : (wanted.plain ? TransformedAmax<false, true> : TransformedAmax<false, false>);
    return Launch(kernel, dim3(grid), kThreads, 0, stream, args, wanted.transformed);
  }
  QuantizeArgs flat = args;
  if (x.stride == x.cols) {
    flat.x = {x.data, 1, x.rows * x.cols, x.rows * x.cols, x.f32, x.squared_relu};
  }
  const int64_t per_block = int64_t{kThreads} * 4 * (x.f32 ? 4 : 8);
  const int64_t across = (flat.x.cols + per_block - 1) / per_block;
  const int64_t most = int64_t{processors} * 8;
  const unsigned grid_x = static_cast<unsigned>(across < most ? across : most);
  const int64_t down = (most + grid_x - 1) / grid_x;
  const unsigned grid_y = static_cast<unsigned>(flat.x.rows < down ? flat.x.rows : down);
  const auto kernel = x.f32 ? PlainAmax<true> : PlainAmax<false>;
  return Launch(kernel, dim3(grid_x, grid_y), kThreads, 0, stream, flat);
}

}  // namespace nibble::gpu
