// Operands in another form: codes as BF16, FP32 or E4M3, BF16 as FP32, codes transposed. A thread
// reads 4 to 32 bytes and writes 16 to 64; nothing is read twice but scales.
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/gemm/gemm_kernels.h"
#include "kernels/cuda/instructions.h"
#include "kernels/gemm/code_value.h"

namespace nibble::gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kGroup = 16;  // codes per thread

// E4M3 codes of 4 E2M1 codes: 0, 1/2, 1, 3/2, 2, 3, 4, 6 are 0x00, 0x30, 0x38, 0x3c, 0x40, 0x44,
// 0x48, 0x4c.
__device__ __forceinline__ uint32_t E4M3OfE2M1(uint32_t four) {
  const uint32_t magnitude = Permute(0x3c383000u, 0x4c484440u, four & 0x7777u);
  // A selector with its top bit set replicates the top bit of 0x80 over the byte.
  const uint32_t sign = (Permute(0x80808080u, 0x80808080u, four) << 7) & 0x80808080u;
  return magnitude | sign;
}

template <class Element>
__device__ __forceinline__ uint32_t CodeOf(const uint32_t (&words)[4], int i) {
  if constexpr (Element::kBits == 4) return (words[i / 8] >> (4 * (i % 8))) & 0xfu;
  return (words[i / 4] >> (8 * (i % 4))) & 0xffu;
}

// The codes of a group; those from `count` on do not exist and are 0.
template <class Element>
__device__ __forceinline__ void LoadCodes(const uint8_t* codes, int64_t group, int count,
                                          uint32_t (&words)[4]) {
  constexpr int kBytes = kGroup * Element::kBits / 8;
  const uint8_t* from = codes + group * kBytes;
  words[0] = words[1] = words[2] = words[3] = 0;
  if (count == kGroup) {
    if constexpr (kBytes == 8) {
      const uint2 all = __ldg(reinterpret_cast<const uint2*>(from));
      words[0] = all.x, words[1] = all.y;
    } else {
      const uint4 all = __ldg(reinterpret_cast<const uint4*>(from));
      words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kBytes; ++i) {
    if (i * 8 / Element::kBits < count) {
      words[i / 4] |= static_cast<uint32_t>(from[i]) << (8 * (i % 4));
    }
  }
}

// Element i of the group as BF16 bits.
template <class Element>
__device__ __forceinline__ uint32_t BitsOfElement(const uint32_t (&words)[4], int i, float scale) {
  return OperandBf16<Element>(CodeOf<Element>(words, i), scale);
}

template <class Element, CodeOutput kOutput>
__global__ __launch_bounds__(kThreads) void Expand(const __grid_constant__ ExpandArgs args) {
  const int64_t group = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t elements = args.rows * args.cols;
  const int64_t first = group * kGroup;
  if (first >= elements) return;
  const int count = elements - first < kGroup ? static_cast<int>(elements - first) : kGroup;
  uint32_t words[4];
  LoadCodes<Element>(args.codes, group, count, words);

  if constexpr (kOutput == CodeOutput::kE4M3) {
    uint8_t* to = static_cast<uint8_t*>(args.out) + first;
    const uint4 all = make_uint4(E4M3OfE2M1(words[0] & 0xffffu), E4M3OfE2M1(words[0] >> 16),
                                 E4M3OfE2M1(words[1] & 0xffffu), E4M3OfE2M1(words[1] >> 16));
    if (count == kGroup) {
      *reinterpret_cast<uint4*>(to) = all;
      return;
    }
    const uint32_t out[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i < count) to[i] = static_cast<uint8_t>(out[i / 4] >> (8 * (i % 4)));
    }
    return;
  }

  float scale = 1.0f;
  if (args.scale != CodeScale::kNone) {
    // Groups do not cross rows: a row is whole blocks of a multiple of 16.
    const auto groups = static_cast<uint32_t>(args.cols / kGroup);
    // 64-bit division takes longer than the rest of the kernel.
    const auto row = static_cast<uint32_t>(
        (group >> 32) == 0 ? static_cast<uint32_t>(group) / groups : group / groups);
    const auto in_row = static_cast<uint32_t>(group - int64_t{row} * groups);
    const auto block_groups = static_cast<uint32_t>(args.block_cols / kGroup);
    const int64_t at =
        int64_t{row / static_cast<uint32_t>(args.block_rows)} * (args.cols / args.block_cols) +
        in_row / block_groups;
    const uint32_t code = __ldg(args.scales + at);
    scale = args.scale == CodeScale::kE4M3 ? CodeValue<E4M3>(code) : E8M0ScaleValue(code);
  }
  if constexpr (kOutput == CodeOutput::kBf16) {
    uint16_t* to = static_cast<uint16_t*>(args.out) + first;
    if (count == kGroup) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t pair[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          pair[i] = BitsOfElement<Element>(words, 8 * h + 2 * i, scale) |
                    (BitsOfElement<Element>(words, 8 * h + 2 * i + 1, scale) << 16);
        }
        StoreGlobal16(reinterpret_cast<uint64_t>(to + 8 * h), pair);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i < count) to[i] = static_cast<uint16_t>(BitsOfElement<Element>(words, i, scale));
    }
  } else {
    float* to = static_cast<float*>(args.out) + first;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i < count) to[i] = FromBits<float>(BitsOfElement<Element>(words, i, scale) << 16);
    }
  }
}

// 8 elements per thread; a row is not vectorised where it does not start on 16 bytes.
__global__ __launch_bounds__(kThreads) void Widen(const uint16_t* x, int64_t rows, int64_t cols,
                                                  int64_t stride, float* out) {
  const int64_t col = 8 * (int64_t{blockIdx.x} * kThreads + threadIdx.x);
  if (col >= cols) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const uint16_t* from = x + row * stride + col;
    float* to = out + row * cols + col;
    const bool vector = cols - col >= 8 && (reinterpret_cast<uintptr_t>(from) & 15u) == 0 &&
                        (reinterpret_cast<uintptr_t>(to) & 15u) == 0;
    if (!vector) {
      for (int i = 0; i < 8 && col + i < cols; ++i) to[i] = DecodeBf16(from[i]);
      continue;
    }
    const uint4 all = __ldg(reinterpret_cast<const uint4*>(from));
    const uint32_t pair[4] = {all.x, all.y, all.z, all.w};
    float value[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value[2 * i] = FromBits<float>(pair[i] << 16);
      value[2 * i + 1] = FromBits<float>(pair[i] & 0xffff0000u);
    }
    reinterpret_cast<float4*>(to)[0] = make_float4(value[0], value[1], value[2], value[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(value[4], value[5], value[6], value[7]);
  }
}

// A tile of 64 by 64 codes, one per byte of shared memory; a thread reads and writes 16 neighbours.
constexpr int kTile = 64;
constexpr int kPitch = kTile + 4;

template <int kBits>
__global__ __launch_bounds__(kThreads) void TransposeCodes(const uint8_t* in, int64_t rows,
                                                           int64_t cols, uint8_t* out) {
  __shared__ uint8_t tile[kTile * kPitch];
  constexpr int kPer = 8 / kBits;
  const int64_t first_row = int64_t{blockIdx.y} * kTile, first_col = int64_t{blockIdx.x} * kTile;
  const int line = static_cast<int>(threadIdx.x) / 4;
  const int part = static_cast<int>(threadIdx.x) % 4 * 16;
  constexpr int kBytes = 16 / kPer;
  {
    const int64_t row = first_row + line, col = first_col + part;
    uint32_t words[4] = {};
    if (row < rows && col < cols) {
      const uint8_t* from = in + (row * cols + col) / kPer;
      const int64_t left = (cols - col) / kPer;
      if (left >= kBytes && (reinterpret_cast<uintptr_t>(from) & (kBytes - 1)) == 0) {
        if constexpr (kBytes == 8) {
          const uint2 all = __ldg(reinterpret_cast<const uint2*>(from));
          words[0] = all.x, words[1] = all.y;
        } else {
          const uint4 all = __ldg(reinterpret_cast<const uint4*>(from));
          words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kBytes; ++i) {
          if (i < left) words[i / 4] |= static_cast<uint32_t>(from[i]) << (8 * (i % 4));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int bit = kBits * i;
      tile[line * kPitch + part + i] =
          static_cast<uint8_t>((words[bit / 32] >> (bit % 32)) & ((1u << kBits) - 1u));
    }
  }
  __syncthreads();
  const int64_t row = first_col + line, col = first_row + part;  // of the output
  if (row >= cols || col >= rows) return;
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int bit = kBits * i;
    words[bit / 32] |= static_cast<uint32_t>(tile[(part + i) * kPitch + line]) << (bit % 32);
  }
  uint8_t* to = out + (row * rows + col) / kPer;
  const int64_t left = (rows - col) / kPer;
  if (left >= kBytes && (reinterpret_cast<uintptr_t>(to) & (kBytes - 1)) == 0) {
    if constexpr (kBytes == 8) {
      *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    } else {
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kBytes; ++i) {
    if (i < left) to[i] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
  }
}

unsigned Count(int64_t size, int64_t step) {
  return static_cast<unsigned>((size + step - 1) / step);
}

template <class Element>
cudaError_t LaunchExpandOf(const ExpandArgs& args, cudaStream_t stream) {
  const dim3 grid(Count(args.rows * args.cols, int64_t{kThreads} * kGroup));
  if constexpr (Element::kBits == 4) {
    if (args.output == CodeOutput::kE4M3) {
      return Launch(Expand<Element, CodeOutput::kE4M3>, grid, kThreads, 0, stream, args);
    }
  }
  if (args.output == CodeOutput::kF32) {
    return Launch(Expand<Element, CodeOutput::kF32>, grid, kThreads, 0, stream, args);
  }
  return Launch(Expand<Element, CodeOutput::kBf16>, grid, kThreads, 0, stream, args);
}

}  // namespace

cudaError_t LaunchWiden(const uint16_t* x, int64_t rows, int64_t cols, int64_t stride, float* out,
                        cudaStream_t stream) {
  const dim3 grid(Count(cols, 8 * int64_t{kThreads}),
                  static_cast<unsigned>(rows < 65535 ? rows : 65535));
  return Launch(Widen, grid, kThreads, 0, stream, x, rows, cols, stride, out);
}

cudaError_t LaunchExpand(const ExpandArgs& args, cudaStream_t stream) {
  switch (args.element) {
    case CodeElement::kE2M1:
      return LaunchExpandOf<E2M1>(args, stream);
    case CodeElement::kE4M3:
      return LaunchExpandOf<E4M3>(args, stream);
    case CodeElement::kE5M2:
      break;
  }
  return LaunchExpandOf<E5M2>(args, stream);
}

cudaError_t LaunchTransposeCodes(const uint8_t* in, int64_t rows, int64_t cols, int bits,
                                 uint8_t* out, cudaStream_t stream) {
  const dim3 grid(Count(cols, kTile), Count(rows, kTile));
  return bits == 4 ? Launch(TransposeCodes<4>, grid, kThreads, 0, stream, in, rows, cols, out)
                   : Launch(TransposeCodes<8>, grid, kThreads, 0, stream, in, rows, cols, out);
}

}  // namespace nibble::gpu
