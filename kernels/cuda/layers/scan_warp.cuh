// The instructions of one warp that the scan's kernels are made of: BF16 matrix fragments, their
// loads and stores, asynchronous copies, shuffles and exponentials. They exist on every target; on
// the host they run under gpu_emulation.h, with the layouts of the PTX manual.
//
// Fragments. Lane l has r = l / 4 and q = l % 4; a word has two BF16, the first in the low half.
//   left [16, 16]:        a0 (r, 2q), a1 (r + 8, 2q), a2 (r, 8 + 2q), a3 (r + 8, 8 + 2q), and the
//                         next column of each
//   right [16, 8]:        b0 (2q, r), b1 (8 + 2q, r), and the next row of each
//   accumulator [16, 8]:  d0 (r, 2q), d1 (r, 2q + 1), d2 (r + 8, 2q), d3 (r + 8, 2q + 1)
// So two neighbouring accumulators, rounded in pairs, are a left fragment.
//
// Thread-safety: as device code. All lanes of a warp call together, except for the copies.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_SCAN_WARP_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_SCAN_WARP_CUH_

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/instructions.h"

namespace nibble::gpu::scan {

#if defined(NIBBLE_GPU_EMULATION)

namespace warp_emulation {

// Words that each thread passes to the others of its warp. There are two, used in turn: a warp
// operation may start while slower lanes still read the words of the last one.
struct Shown {
  uint32_t words[6];
};
inline Shown shown[2][1024];
inline uint8_t turn[1024];

inline void Sync() { emulation::WarpCombine(0, emulation::Combine::kOr); }
// The words of every lane.
inline const Shown* Show(const uint32_t* words, int count) {
  const unsigned thread = threadIdx.x;
  const unsigned now = turn[thread] ^= 1;
  std::memcpy(shown[now][thread].words, words, sizeof(uint32_t) * count);
  Sync();
  return shown[now] + thread / 32 * 32;
}
inline float Half(uint32_t word, int high) {
  return FromBits<float>(high ? word & 0xffff0000u : word << 16);
}

}  // namespace warp_emulation

inline void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  using warp_emulation::Half;
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const warp_emulation::Shown* all = warp_emulation::Show(mine, 6);
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
    double sum = d[i];
    for (int k = 0; k < 16; ++k) {
      const uint32_t left = all[row % 8 * 4 + k % 8 / 2].words[row / 8 + k / 8 * 2];
      const uint32_t right = all[col * 4 + k % 8 / 2].words[4 + k / 8];
      sum += static_cast<double>(Half(left, k % 2)) * Half(right, k % 2);
    }
    d[i] = static_cast<float>(sum);
  }
}
inline void LoadMatrices(uint32_t (&words)[4], uint32_t address, bool transposed) {
  if (address % 16 != 0) std::abort();
  const warp_emulation::Shown* all = warp_emulation::Show(&address, 1);
  const unsigned major = threadIdx.x % 32 / 4, minor = threadIdx.x % 4 * 2;
  for (unsigned i = 0; i < 4; ++i) {
    const auto element = [&](unsigned row, unsigned col) -> uint32_t {
      return SharedAt<uint16_t>(all[8 * i + row].words[0] + 2 * col);
    };
    words[i] = transposed ? element(minor, major) | element(minor + 1, major) << 16
                          : element(major, minor) | element(major, minor + 1) << 16;
  }
}
inline void LoadMatrices(uint32_t (&words)[4], uint32_t address) {
  LoadMatrices(words, address, false);
}
inline void LoadMatricesTransposed(uint32_t (&words)[4], uint32_t address) {
  LoadMatrices(words, address, true);
}
inline void StoreMatrices(uint32_t address, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  if (address % 16 != 0) std::abort();
  const warp_emulation::Shown* all = warp_emulation::Show(&address, 1);
  const uint32_t words[4] = {w0, w1, w2, w3};
  for (unsigned i = 0; i < 4; ++i) {
    SharedAt<uint32_t>(all[8 * i + threadIdx.x % 32 / 4].words[0] + threadIdx.x % 4 * 4) = words[i];
  }
}
inline void CopyOrZero16(uint32_t to, const void* from, bool present) {
  if (to % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) std::abort();
  SharedAt<uint4>(to) = present ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
}
inline void CommitCopies() {}
template <int kLeft>
void WaitForCopyGroups() {}
inline float2 LoadShared8(uint32_t address) { return SharedAt<float2>(address); }
inline uint32_t LoadSharedWord(uint32_t address) { return SharedAt<uint32_t>(address); }
inline void SyncWarp() { warp_emulation::Sync(); }
inline int Opaque(int x) { return x; }
template <class T>
T FromLane(T x, unsigned mask) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  bits = emulation::WarpExchange(bits, mask);
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline float Exp2(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;
}

#else

// d += a · b.
__device__ __forceinline__ void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices [8, 8]: lane 8i + j gives the address of row j of matrix i. Word i of a lane is
// (r, 2q) and (r, 2q + 1) of matrix i, or (2q, r) and (2q + 1, r) of it if transposed.
__device__ __forceinline__ void LoadMatrices(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
// The inverse of LoadMatrices.
__device__ __forceinline__ void StoreMatrices(uint32_t address, uint32_t w0, uint32_t w1,
                                              uint32_t w2, uint32_t w3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(w0), "r"(w1), "r"(w2), "r"(w3)
               : "memory");
}

// 16 bytes from global to shared memory, or zeros. `from` is a valid address in any case.
__device__ __forceinline__ void CopyOrZero16(uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(present ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `kLeft` of this thread's committed groups are unfinished.
template <int kLeft>
__device__ __forceinline__ void WaitForCopyGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

__device__ __forceinline__ float2 LoadShared8(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}

__device__ __forceinline__ uint32_t LoadSharedWord(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

__device__ __forceinline__ void SyncWarp() { __syncwarp(); }
// x, opaque to the compiler: values that depend on it are recomputed where they are needed instead
// of being kept in registers throughout a loop.
__device__ __forceinline__ int Opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
// The value of lane `lane ^ mask`; lanes may differ in `mask`.
template <class T>
__device__ __forceinline__ T FromLane(T x, unsigned mask) {
  return __shfl_xor_sync(0xffffffffu, x, static_cast<int>(mask));
}
// 2^x with a relative error of 2^-22; results below 2^-126 are zero.
__device__ __forceinline__ float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

#endif

// The elements of a word.
__device__ __forceinline__ float First(uint32_t pair) { return FromBits<float>(pair << 16); }
__device__ __forceinline__ float Second(uint32_t pair) {
  return FromBits<float>(pair & 0xffff0000u);
}

// The sum over the four lanes of a row of an accumulator, in each of them.
__device__ __forceinline__ float SumOfRow(float x) {
  x += FromLane(x, 1u);
  return x + FromLane(x, 2u);
}

}  // namespace nibble::gpu::scan

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_SCAN_WARP_CUH_
