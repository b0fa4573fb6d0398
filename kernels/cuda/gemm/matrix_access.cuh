// Tensor-core matmul, its operand loads and asynchronous copies as single instructions of every
// card from compute capability 8.0 on, each with a version for gpu_emulation.h, so that kernels
// built of them are tested without a GPU.
//
// In all of them a warp's lane has the number 4 · g + t, with g from 0 to 7 and t from 0 to 3.
// Thread-safety: as device code; the warp's threads call together.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_MATRIX_ACCESS_CUH_
#define NIBBLE_KERNELS_CUDA_GEMM_MATRIX_ACCESS_CUH_

#include "kernels/cuda/device_access.cuh"
#include "kernels/formats/bfloat16.h"

namespace nibble::gpu {

#if defined(NIBBLE_GPU_EMULATION)

// Words that the lanes of a warp exchange.
inline uint32_t shown[1024][6];
inline void MeetWarp() { emulation::WarpCombine(0, emulation::Combine::kOr); }
inline unsigned FirstLane() { return threadIdx.x / 32 * 32; }

template <bool kTransposed>
void LoadMatrices(uint32_t (&words)[4], uint32_t row_address) {
  shown[threadIdx.x][0] = row_address;
  MeetWarp();
  const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (unsigned j = 0; j < 4; ++j) {
    const uint32_t* rows[8];
    for (unsigned r = 0; r < 8; ++r) {
      rows[r] = &SharedAt<uint32_t>(shown[FirstLane() + 8 * j + r][0]);
    }
    if (!kTransposed) {
      words[j] = rows[g][t];
      continue;
    }
    const auto element = [&](unsigned row) { return rows[row][g / 2] >> (16 * (g % 2)) & 0xffffu; };
    words[j] = element(2 * t) | element(2 * t + 1) << 16;
  }
  MeetWarp();
}

inline void MultiplyBf16(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&sums)[4]) {
  for (int i = 0; i < 4; ++i) shown[threadIdx.x][i] = a[i];
  shown[threadIdx.x][4] = b[0];
  shown[threadIdx.x][5] = b[1];
  MeetWarp();
  const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const auto value = [](uint32_t word, unsigned k) {
    return double{DecodeBf16(static_cast<uint16_t>(word >> (16 * (k % 2))))};
  };
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned col = 2 * t + i % 2;
    double sum = sums[i];
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned lane = k % 8 / 2;
      sum += value(shown[FirstLane() + 4 * g + lane][i / 2 + 2 * (k / 8)], k) *
             value(shown[FirstLane() + 4 * col + lane][4 + k / 8], k);
    }
    sums[i] = static_cast<float>(sum);
  }
  MeetWarp();
}

inline void CopyToShared16IfValid(uint32_t to, const void* from, bool valid) {
  SharedAt<uint4>(to) = valid ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
}
inline void CopyToShared4IfValid(uint32_t to, const void* from, bool valid) {
  SharedAt<uint32_t>(to) = valid ? *static_cast<const uint32_t*>(from) : 0u;
}
inline void CommitCopies() {}
template <int kPending>
void WaitForCopiesBut() {}

#else

// Four matrices of 8 by 8 BF16. Lane 8 · j + r gives the shared-memory address of row r of matrix
// j; words[j] is the pair (g, 2t), (g, 2t + 1) of matrix j or, transposed, (2t, g), (2t + 1, g).
template <bool kTransposed>
__device__ __forceinline__ void LoadMatrices(uint32_t (&words)[4], uint32_t row_address) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row_address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row_address)
                 : "memory");
  }
}

// sums[16, 8] += a[16, 16] · b[16, 8]. a: pairs along its columns k of (row g, k 2t), (g + 8, 2t),
// (g, 2t + 8), (g + 8, 2t + 8); b: pairs along its rows k of (k 2t, column g), (2t + 8, g);
// sums: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
__device__ __forceinline__ void MultiplyBf16(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                             float (&sums)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Asynchronous copies from global to shared memory; zeros where nothing may be read.
__device__ __forceinline__ void CopyToShared16IfValid(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16u : 0u)
               : "memory");
}
__device__ __forceinline__ void CopyToShared4IfValid(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4u : 0u)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's last groups are under way.
template <int kPending>
__device__ __forceinline__ void WaitForCopiesBut() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#endif

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_GEMM_MATRIX_ACCESS_CUH_
