// Hopper's asynchronous matrix multiply-accumulate of a warpgroup (wgmma), for BF16 operands and
// FP32 accumulators: m64nNk16 with N = 64 or 128. Only sm_90a has it; elsewhere these functions
// stop the kernel, which the host must not launch there. tensor_core_emulation.h replaces them on
// the host.
//
// Operands in shared memory are panels: rows of 64 elements (128 bytes), 128-byte swizzled (bits
// 4 … 6 of an address are those bits xor bits 7 … 9), at multiples of 1024 bytes. A tile of R rows
// and more than 64 columns is several panels of R rows, one after the other.
//   kDepth    the 64 columns are the depth of the matmul: operand [rows, depth]
//   kOutput   the 64 columns are rows or columns of the result: operand [depth, columns]
//
// Order of calls: WarpgroupFence() after ordinary writes to accumulators or fragments, any number
// of multiplications, CommitProducts(), then WaitForProducts<n>() and Settle() on the registers of
// the finished matmuls, before they are read or written. Shared memory written by ordinary stores
// needs FenceAsyncShared() first (async_copy.cuh).
//
// Thread-safety: as device code; all four warps of an aligned warpgroup call together.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_WARPGROUP_MMA_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_WARPGROUP_MMA_CUH_

#include <cstdint>

#include "kernels/cuda/layers/warp_mma.cuh"

#if defined(NIBBLE_GPU_EMULATION)
#include "kernels/cuda/layers/tensor_core_emulation.h"
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(NIBBLE_GPU_EMULATION)
#define NIBBLE_HOPPER 1
#else
#define NIBBLE_HOPPER 0
#endif

namespace nibble::gpu {

enum class Along { kDepth = 0, kOutput = 1 };

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;

// Describes the operand that starts at `address`. `panel_bytes`: from a panel to the next one, used
// along the output only.
__device__ __forceinline__ uint64_t OperandAt(uint32_t address, uint32_t panel_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{8 * kPanelRowBytes / 16} << 32;
  return kSwizzle128 | kEightRows | uint64_t{panel_bytes / 16} << 16 | (address & 0x3ffffu) / 16;
}
// The operand `bytes` further on.
__device__ __forceinline__ uint64_t Advance(uint64_t operand, uint32_t bytes) {
  return operand + bytes / 16;
}
// One step of 16 along the depth.
__device__ __forceinline__ constexpr uint32_t DepthStepBytes(Along along) {
  return along == Along::kDepth ? 32 : 16 * kPanelRowBytes;
}

}  // namespace nibble::gpu

#if !defined(NIBBLE_GPU_EMULATION)

namespace nibble::gpu {

__device__ __forceinline__ void WarpgroupFence() {
#if NIBBLE_HOPPER
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void CommitProducts() {
#if NIBBLE_HOPPER
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits until at most `kLeft` of the committed groups are unfinished.
template <int kLeft>
__device__ __forceinline__ void WaitForProducts() {
#if NIBBLE_HOPPER
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#endif
}
// Keeps the compiler from moving uses of registers across a wait or an issue.
template <int kCount>
__device__ __forceinline__ void Settle(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void Settle(uint32_t (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

#define NIBBLE_D8(d, i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define NIBBLE_D32(d, i) \
  NIBBLE_D8(d, i), NIBBLE_D8(d, i + 8), NIBBLE_D8(d, i + 16), NIBBLE_D8(d, i + 24)
#define NIBBLE_R32_0                                                                           \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NIBBLE_R32_1                                                                           \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// d[64, 64 or 128] = a · b + (accumulate ? d : 0), one step of depth; a and b in shared memory.
template <Along kA, Along kB>
__device__ __forceinline__ void MultiplyShared(float (&d)[32], uint64_t a, uint64_t b,
                                               bool accumulate) {
#if NIBBLE_HOPPER
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" NIBBLE_R32_0 "}, %32, %33, p, 1, 1, %35, %36; }"
      : NIBBLE_D32(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kA)),
        "n"(static_cast<int>(kB)));
#endif
}
template <Along kA, Along kB>
__device__ __forceinline__ void MultiplyShared(float (&d)[64], uint64_t a, uint64_t b,
                                               bool accumulate) {
#if NIBBLE_HOPPER
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" NIBBLE_R32_0 ", " NIBBLE_R32_1 "}, %64, %65, p, 1, 1, %67, %68; }"
      : NIBBLE_D32(d, 0), NIBBLE_D32(d, 32)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kA)),
        "n"(static_cast<int>(kB)));
#endif
}

// The same with a as fragments a[0 … 3] of the warps.
template <Along kB>
__device__ __forceinline__ void MultiplyFragments(float (&d)[32], const uint32_t* a, uint64_t b,
                                                  bool accumulate) {
#if NIBBLE_HOPPER
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" NIBBLE_R32_0 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38; }"
      : NIBBLE_D32(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
        "n"(static_cast<int>(kB)));
#endif
}
template <Along kB>
__device__ __forceinline__ void MultiplyFragments(float (&d)[64], const uint32_t* a, uint64_t b,
                                                  bool accumulate) {
#if NIBBLE_HOPPER
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %69, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" NIBBLE_R32_0 ", " NIBBLE_R32_1 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70; }"
      : NIBBLE_D32(d, 0), NIBBLE_D32(d, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
        "n"(static_cast<int>(kB)));
#endif
}

#undef NIBBLE_D8
#undef NIBBLE_D32
#undef NIBBLE_R32_0
#undef NIBBLE_R32_1

// Moves registers between the warpgroups of a block: called once by all warps of each warpgroup, in
// the branch of its role.
template <int kRegisters>
__device__ __forceinline__ void ReleaseRegisters() {
#if NIBBLE_HOPPER
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void ClaimRegisters() {
#if NIBBLE_HOPPER
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

}  // namespace nibble::gpu

#endif  // !NIBBLE_GPU_EMULATION

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_WARPGROUP_MMA_CUH_
