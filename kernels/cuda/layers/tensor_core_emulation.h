// The instructions of warpgroup_mma.cuh and async_copy.cuh on the host, for kernels that run under
// gpu_emulation.h: indices, layouts, descriptors, barriers and the order of waits are tested
// without a GPU. Those of warp_mma.cuh are in warp_emulation.h.
//
// A warpgroup matmul reads its operands in shared memory as late as allowed, when it is waited for;
// copies run as early as allowed, when they are issued. So shared memory that is reused too early
// gives wrong results here. A wait that would never end stops the program.
//
// Thread-safety: one host thread; see gpu_emulation.h.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_TENSOR_CORE_EMULATION_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_TENSOR_CORE_EMULATION_H_

#include <cuda.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/instructions.h"
#include "kernels/cuda/layers/warp_emulation.h"

namespace nibble::gpu {
namespace emulation {

struct MemoryBarrier {
  int64_t arrivals = 0, pending = 0, bytes = 0;
  uint32_t phase = 0;
  void Check() {
    if (pending != 0 || bytes != 0) return;
    pending = arrivals;
    ++phase;
  }
};
inline MemoryBarrier& BarrierAt(uint32_t address) {
  static MemoryBarrier barriers[(228 << 10) / 8];
  return barriers[address / 8];
}

struct ThreadBarrier {
  int arrived = 0;
  uint32_t round = 0;
  void Arrive(int threads) {
    if (++arrived < threads) return;
    arrived = 0;
    ++round;
  }
};
inline ThreadBarrier thread_barriers[16];

// Matmuls of one thread that have not run yet, each for the thread's own rows of the result.
struct Products {
  std::deque<std::deque<std::function<void()>>> groups{1};
};
inline Products products[1024];

inline float SharedBf16(uint32_t address) {
  const uint32_t swizzled = address ^ (address >> 7 & 7u) << 4;
  return Low(SharedAt<uint16_t>(swizzled));
}
// Element (depth, index along the output) of an operand.
inline float OperandElement(uint64_t operand, bool along_output, uint32_t depth, uint32_t index) {
  const auto field = [&](int bit) { return static_cast<uint32_t>(operand >> bit & 0x3fffu) * 16; };
  const uint32_t start = field(0), panel = field(16), eight_rows = field(32);
  if (operand >> 62 != 1 || (operand >> 49 & 7) != 0) std::abort();
  if (along_output) {
    return SharedBf16(start + index / 64 * panel + depth / 8 * eight_rows + depth % 8 * 128 +
                      index % 64 * 2);
  }
  return SharedBf16(start + index / 8 * eight_rows + index % 8 * 128 + depth * 2);
}

// The part of this thread: rows l / 4 and l / 4 + 8 of its warp's sixteen. `a(row, depth)`: row of
// 64 in the warpgroup.
template <int kCount, class A>
void EnqueueProduct(float (&d)[kCount], A a, uint64_t b, bool b_along_output, bool accumulate) {
  const unsigned lane = Thread() % 32;
  products[Thread()].groups.back().push_back([&d, a, b, b_along_output, accumulate, lane] {
    for (int half = 0; half < 2; ++half) {
      float row[16];
      for (uint32_t k = 0; k < 16; ++k) row[k] = a(static_cast<int>(lane / 4) + 8 * half, k);
      for (int i = 0; i < kCount; ++i) {
        if (i % 4 / 2 != half) continue;
        const uint32_t column = static_cast<uint32_t>(i / 4 * 8 + i % 2) + lane % 4 * 2;
        float sum = accumulate ? d[i] : 0.0f;
        for (uint32_t k = 0; k < 16; ++k) {
          sum += row[k] * OperandElement(b, b_along_output, k, column);
        }
        d[i] = sum;
      }
    }
  });
}

// A tensor map as the emulation stores it in a CUtensorMap.
struct EmulatedMap {
  const uint16_t* data;
  int64_t columns, rows, sequences, stride;  // elements
  int64_t box_rows;
};

}  // namespace emulation

// warpgroup_mma.cuh

enum class Along;
inline void WarpgroupFence() {}
inline void CommitProducts() { emulation::products[emulation::Thread()].groups.emplace_back(); }
template <int kLeft>
void WaitForProducts() {
  // The last group is not committed yet.
  auto& groups = emulation::products[emulation::Thread()].groups;
  if (!groups.back().empty()) std::abort();
  while (groups.size() > kLeft + 1) {
    for (const auto& product : groups.front()) product();
    groups.pop_front();
  }
}
template <class T, int kCount>
void Settle(T (&)[kCount]) {}

template <Along kA, Along kB, int kCount>
void MultiplyShared(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate) {
  using namespace emulation;
  const int first = static_cast<int>(Thread() / 32 % 4) * 16;
  const auto element = [a, first](int row, uint32_t depth) {
    return OperandElement(a, static_cast<int>(kA) != 0, depth, static_cast<uint32_t>(first + row));
  };
  EnqueueProduct(d, element, b, static_cast<int>(kB) != 0, accumulate);
}
template <Along kB, int kCount>
void MultiplyFragments(float (&d)[kCount], const uint32_t* a, uint64_t b, bool accumulate) {
  using namespace emulation;
  const WarpWords words = Show(a, 4);
  struct Rows {
    float x[16][16];
  } rows;
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) rows.x[row][k] = words.Left(row, k);
  }
  const auto element = [rows](int row, uint32_t depth) { return rows.x[row][depth]; };
  EnqueueProduct(d, element, b, static_cast<int>(kB) != 0, accumulate);
}
template <int kRegisters>
void ReleaseRegisters() {}
template <int kRegisters>
void ClaimRegisters() {}

// async_copy.cuh

inline void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  if (barrier % 8 != 0) std::abort();
  emulation::BarrierAt(barrier) = {arrivals, arrivals, 0, 0};
}
inline void PublishBarriers() {
  for (emulation::ThreadBarrier& barrier : emulation::thread_barriers) barrier = {};
}
inline void Arrive(uint32_t barrier) {
  emulation::MemoryBarrier& b = emulation::BarrierAt(barrier);
  if (--b.pending < 0) std::abort();
  b.Check();
}
inline void ArriveAndExpect(uint32_t barrier, uint32_t bytes) {
  emulation::BarrierAt(barrier).bytes += bytes;
  Arrive(barrier);
}
inline void CompleteBytes(uint32_t barrier, int64_t bytes) {
  emulation::BarrierAt(barrier).bytes -= bytes;
  emulation::BarrierAt(barrier).Check();
}
inline void WaitForPhase(uint32_t barrier, uint32_t parity) {
  emulation::WaitUntil([&] { return emulation::BarrierAt(barrier).phase % 2 != parity; },
                       "the phase of a barrier");
}
inline void CopyBox(uint32_t to, const CUtensorMap* map, int column, int row, int sequence,
                    uint32_t barrier) {
  emulation::EmulatedMap m;
  std::memcpy(&m, map, sizeof m);
  if (to % 1024 != 0) std::abort();
  for (int64_t r = 0; r < m.box_rows; ++r) {
    for (int64_t c = 0; c < 64; ++c) {
      const bool inside = row + r < m.rows && column + c < m.columns && sequence < m.sequences;
      const uint32_t address = to + static_cast<uint32_t>(r * 128 + c * 2);
      SharedAt<uint16_t>(address ^ (address >> 7 & 7u) << 4) =
          inside ? m.data[(sequence * m.rows + row + r) * m.stride + column + c] : uint16_t{0};
    }
  }
  CompleteBytes(barrier, m.box_rows * 128);
}
inline void CopyBytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) std::abort();
  std::memcpy(&SharedAt<char>(to), from, bytes);
  CompleteBytes(barrier, bytes);
}
inline void StoreFloats(float* to, uint32_t from, uint32_t bytes) {
  std::memcpy(to, &SharedAt<char>(from), bytes);
}
inline void AddFloats(float* to, uint32_t from, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes / 4; ++i) to[i] += SharedAt<float>(from + 4 * i);
}
inline void CommitBulk() {}
inline void WaitForBulkReads() {}
inline void WaitForBulk() {}
inline void FenceAsyncShared() {}
inline void FenceAsyncGlobal() {}
inline void WaitAtBarrier(int id, int threads) {
  emulation::ThreadBarrier& b = emulation::thread_barriers[id];
  const uint32_t round = b.round;
  b.Arrive(threads);
  emulation::WaitUntil([&] { return b.round != round; }, "a barrier of threads");
}
inline void ArriveAtBarrier(int id, int threads) { emulation::thread_barriers[id].Arrive(threads); }
inline void WaitForTurn(const int* counter, int turn) {
  emulation::WaitUntil([&] { return *counter == turn; }, "its turn");
}
inline void PassTurn(int* counter) { ++*counter; }

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_TENSOR_CORE_EMULATION_H_
