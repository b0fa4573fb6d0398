// Limit: one read and one write of each part. The parts are parameters of the kernel; a block
// copies a tile of one part, each thread four units of up to 16 bytes, all of which it reads before
// it writes the first.
#include "kernels/cuda/layers/copy_kernels.h"

#include <limits>
#include <utility>

#include "kernels/cuda/layers/eight.cuh"

namespace nibble::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kUnits = 4;  // of a thread
constexpr int64_t kTile = kThreads * kUnits;
constexpr int kParts = 64;  // of a launch: parameters are at most 4 KiB

enum class Unit : uint8_t {
  kBytes16,
  kBytes8,
  kBytes4,
  kByte,
  kWidenedEight,
  kWidened,
  kRoundedEight,
  kRounded,
};

struct Part {
  void* to;
  const void* from;
  int64_t units;     // of all lines
  int64_t per_line;  // units
  int64_t to_pitch, from_pitch;
  int32_t first_tile;
  Unit unit;
};
struct Parts {
  Part at[kParts];
  int count;
};
static_assert(sizeof(Parts) <= 4096);

template <class T>
struct CopiedUnit {
  static constexpr int kFrom = sizeof(T), kTo = sizeof(T);  // bytes
  T value;
  __device__ __forceinline__ void Load(const void* from) { value = *static_cast<const T*>(from); }
  __device__ __forceinline__ void Store(void* to) const { *static_cast<T*>(to) = value; }
};
template <class From, class To, bool kWide>
struct ConvertedUnit {
  static constexpr int kElements = kWide ? kEight : 1;
  static constexpr int kFrom = kElements * sizeof(From), kTo = kElements * sizeof(To);
  float x[kEight];
  __device__ __forceinline__ void Load(const void* from) {
    LoadEight<kWide>(static_cast<const From*>(from), 1, x);
  }
  __device__ __forceinline__ void Store(void* to) const {
    StoreEight<kWide>(static_cast<To*>(to), 1, x);
  }
};

template <class U>
__device__ __forceinline__ void CopyTile(const Part& part, int64_t first) {
  U units[kUnits];
  int64_t to[kUnits];  // bytes from the part's beginning
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int64_t unit = first + i * kThreads + threadIdx.x;
    if (unit >= part.units) break;
    int64_t line = 0, at = unit;
    if (part.per_line < part.units) {
      // A division in 32 bits where it is enough.
      if ((part.units | part.per_line) >> 32 == 0) {
        line = static_cast<uint32_t>(unit) / static_cast<uint32_t>(part.per_line);
      } else {
        line = unit / part.per_line;
      }
      at = unit - line * part.per_line;
    }
    units[i].Load(static_cast<const char*>(part.from) + line * part.from_pitch + at * U::kFrom);
    to[i] = line * part.to_pitch + at * U::kTo;
  }
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    if (first + i * kThreads + threadIdx.x >= part.units) break;
    units[i].Store(static_cast<char*>(part.to) + to[i]);
  }
}

__global__ __launch_bounds__(kThreads) void CopyPartsKernel(const __grid_constant__ Parts parts) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  // The last part that begins at this block or before.
  int low = 0, high = parts.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (parts.at[middle].first_tile <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const Part& part = parts.at[low];
  const int64_t first = (block - part.first_tile) * kTile;
  switch (part.unit) {
    case Unit::kBytes16:
      return CopyTile<CopiedUnit<uint4>>(part, first);
    case Unit::kBytes8:
      return CopyTile<CopiedUnit<uint2>>(part, first);
    case Unit::kBytes4:
      return CopyTile<CopiedUnit<uint32_t>>(part, first);
    case Unit::kByte:
      return CopyTile<CopiedUnit<uint8_t>>(part, first);
    case Unit::kWidenedEight:
      return CopyTile<ConvertedUnit<uint16_t, float, true>>(part, first);
    case Unit::kWidened:
      return CopyTile<ConvertedUnit<uint16_t, float, false>>(part, first);
    case Unit::kRoundedEight:
      return CopyTile<ConvertedUnit<float, uint16_t, true>>(part, first);
    case Unit::kRounded:
      return CopyTile<ConvertedUnit<float, uint16_t, false>>(part, first);
  }
}

// Whether every line of both sides begins at a multiple of `bytes`.
bool LinesAlign(const CopyParts::Part& part, uintptr_t bytes) {
  const auto aligned = [&](const void* begin, int64_t pitch) {
    return reinterpret_cast<uintptr_t>(begin) % bytes == 0 &&
           (part.lines == 1 || static_cast<uintptr_t>(pitch) % bytes == 0);
  };
  return aligned(part.to, part.to_pitch) && aligned(part.from, part.from_pitch);
}

// The largest unit in which a part can be copied, and its elements.
std::pair<Unit, int64_t> UnitOf(const CopyParts::Part& part) {
  if (part.as != CopyParts::As::kBytes) {
    const bool widens = part.as == CopyParts::As::kWidened;
    if (part.elements % kEight == 0 && LinesAlign(part, 16)) {
      return {widens ? Unit::kWidenedEight : Unit::kRoundedEight, kEight};
    }
    return {widens ? Unit::kWidened : Unit::kRounded, 1};
  }
  const std::pair<Unit, int64_t> units[] = {
      {Unit::kBytes16, 16}, {Unit::kBytes8, 8}, {Unit::kBytes4, 4}};
  for (const auto& [unit, bytes] : units) {
    if (part.elements % bytes == 0 && LinesAlign(part, static_cast<uintptr_t>(bytes))) {
      return {unit, bytes};
    }
  }
  return {Unit::kByte, 1};
}

}  // namespace

cudaError_t LaunchCopyParts(const CopyParts& request, cudaStream_t stream) {
  Parts parts = {};
  int64_t tiles = 0;
  const auto launch = [&]() -> cudaError_t {
    if (parts.count == 0) return cudaSuccess;
    if (tiles > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
    const cudaError_t launched =
        Launch(CopyPartsKernel, dim3(static_cast<unsigned>(tiles)), kThreads, 0, stream, parts);
    parts.count = 0;
    tiles = 0;
    return launched;
  };
  for (const CopyParts::Part& part : request.parts) {
    if (part.lines * part.elements == 0) continue;
    const auto [unit, elements] = UnitOf(part);
    const int64_t per_line = part.elements / elements;
    parts.at[parts.count++] = {.to = part.to,
                               .from = part.from,
                               .units = part.lines * per_line,
                               .per_line = per_line,
                               .to_pitch = part.to_pitch,
                               .from_pitch = part.from_pitch,
                               .first_tile = static_cast<int32_t>(tiles),
                               .unit = unit};
    tiles += (part.lines * per_line + kTile - 1) / kTile;
    if (parts.count < kParts) continue;
    if (const cudaError_t launched = launch(); launched != cudaSuccess) return launched;
  }
  return launch();
}

}  // namespace nibble::gpu
