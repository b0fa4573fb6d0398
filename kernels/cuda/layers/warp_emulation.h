// The instructions of warp_mma.cuh on the host, for kernels that run under gpu_emulation.h.
//
// Thread-safety: one host thread; see gpu_emulation.h.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_WARP_EMULATION_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_WARP_EMULATION_H_

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/instructions.h"

namespace nibble::gpu {
namespace emulation {

inline unsigned Thread() { return thread_index.x; }
inline void SyncLanes() { WarpCombine(0, Combine::kOr); }

inline float Low(uint32_t pair) { return FromBits<float>(pair << 16); }
inline float High(uint32_t pair) { return FromBits<float>(pair & 0xffff0000u); }

// Words that every lane of the warp has passed to the others: with six, fragments a and b.
class WarpWords {
 public:
  using Words = uint32_t[6];
  explicit WarpWords(const Words* lanes) : lanes_(lanes) {}

  uint32_t Of(unsigned lane, int word = 0) const { return lanes_[lane][word]; }
  // Element (row, depth) of fragment a.
  float Left(int row, int depth) const {
    return Element(row % 8 * 4 + depth % 8 / 2, row / 8 + depth / 8 * 2, depth % 2);
  }
  // Element (depth, column) of fragment b.
  float Right(int depth, int column) const {
    return Element(column * 4 + depth % 8 / 2, 4 + depth / 8, depth % 2);
  }

 private:
  float Element(int lane, int word, int index) const {
    return index == 0 ? Low(lanes_[lane][word]) : High(lanes_[lane][word]);
  }

  const Words* lanes_;
};
// Passes this lane's words to the others. They are kept twice, in turn: a lane may show its next
// words while slower lanes still read the last ones.
inline WarpWords Show(const uint32_t* words, int count) {
  static WarpWords::Words shown[2][1024];
  static uint8_t turns[1024];
  const unsigned thread = Thread();
  const unsigned turn = turns[thread] ^= 1;
  std::memcpy(shown[turn][thread], words, sizeof(uint32_t) * static_cast<size_t>(count));
  SyncLanes();
  return WarpWords(shown[turn] + thread / 32 * 32);
}

// d += a · b, with sums in `Sum`.
template <class Sum>
void MultiplyAdd(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const WarpWords words = Show(mine, 6);
  const int lane = static_cast<int>(Thread() % 32);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    Sum sum = d[i];
    for (int k = 0; k < 16; ++k) sum += Sum{words.Left(row, k)} * words.Right(k, column);
    d[i] = static_cast<float>(sum);
  }
}

inline void LoadMatrices(uint32_t (&words)[4], uint32_t address, bool transposed) {
  if (address % 16 != 0) std::abort();
  const WarpWords addresses = Show(&address, 1);
  const unsigned lane = Thread() % 32, major = lane / 4, minor = lane % 4 * 2;
  for (unsigned i = 0; i < 4; ++i) {
    const auto element = [&](unsigned row, unsigned column) -> uint32_t {
      return SharedAt<uint16_t>(addresses.Of(8 * i + row) + 2 * column);
    };
    words[i] = transposed ? element(minor, major) | element(minor + 1, major) << 16
                          : element(major, minor) | element(major, minor + 1) << 16;
  }
  SyncLanes();  // the lanes read together: none may overwrite what others have yet to read
}

}  // namespace emulation

inline void MultiplyTile(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::MultiplyAdd<float>(d, a, b0, b1);
}
inline void LoadMatrices(uint32_t (&words)[4], uint32_t address) {
  emulation::LoadMatrices(words, address, false);
}
inline void LoadMatricesTransposed(uint32_t (&words)[4], uint32_t address) {
  emulation::LoadMatrices(words, address, true);
}
inline void StoreMatrices(uint32_t address, uint32_t word0, uint32_t word1, uint32_t word2,
                          uint32_t word3) {
  using namespace emulation;
  if (address % 16 != 0) std::abort();
  const WarpWords addresses = Show(&address, 1);
  const unsigned lane = Thread() % 32;
  const uint32_t words[4] = {word0, word1, word2, word3};
  for (unsigned i = 0; i < 4; ++i) {
    SharedAt<uint32_t>(addresses.Of(8 * i + lane / 4) + lane % 4 * 4) = words[i];
  }
  SyncLanes();  // the lanes write together
}
inline void CopyOrZero16(uint32_t to, const void* from, bool present) {
  if (to % 16 != 0 || (present && reinterpret_cast<uintptr_t>(from) % 16 != 0)) std::abort();
  SharedAt<uint4>(to) = present ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
}
inline void CommitCopies() {}
template <int kLeft>
void WaitForCopyGroups() {}
inline void StoreShared16(uint32_t address, const float (&x)[4]) {
  std::memcpy(&SharedAt<float>(address), x, sizeof x);
}
inline void LoadSharedFloats(uint32_t address, float (&x)[4]) {
  std::memcpy(x, &SharedAt<float>(address), sizeof x);
}
inline float2 LoadShared8(uint32_t address) { return SharedAt<float2>(address); }
inline void StoreSharedInts(uint32_t address, int4 x) { SharedAt<int4>(address) = x; }
inline int4 LoadSharedInts(uint32_t address) { return SharedAt<int4>(address); }
inline uint32_t FromLane(uint32_t x, int mask) {
  return static_cast<uint32_t>(emulation::WarpExchange(x, static_cast<unsigned>(mask)));
}
inline float FromLane(float x, int mask) {
  return FromBits<float>(FromLane(BitsOf<float>(x), mask));
}
inline float OfLane(float x, int lane) {
  return FromLane(x, static_cast<int>(emulation::Thread() % 32) ^ lane);
}
inline void SyncWarp() { emulation::SyncLanes(); }
inline float Exp2(float x) {
  const float y = std::exp2(x);
  return y < 1.17549435e-38f ? 0.0f : y;
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_WARP_EMULATION_H_
