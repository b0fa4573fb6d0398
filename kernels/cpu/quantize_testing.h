// Shared by the tests of the CPU quantisers.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_QUANTIZE_TESTING_H_
#define NIBBLE_KERNELS_CPU_QUANTIZE_TESTING_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace nibble {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr int kAll = BlockShape::kWhole;

inline uint32_t ToU32(float x) { return std::bit_cast<uint32_t>(x); }
inline float FromU32(uint32_t bits) { return std::bit_cast<float>(bits); }

inline std::vector<OperandSpec> EverySpec() {
  std::vector<OperandSpec> specs;
  for (const FormatInfo& info : AllFormats()) {
    for (const BlockShape& shape : info.shapes) {
      for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
        OperandSpec spec = OperandSpec::Of(info.format);
        spec.block = shape;
        spec.rounding = rounding;
        specs.push_back(spec);
      }
    }
  }
  return specs;
}

inline bool Fits(const OperandSpec& spec, Orientation orientation, int rows, int cols) {
  const int along = orientation == Orientation::kRow ? cols : rows;
  const int across = orientation == Orientation::kRow ? rows : cols;
  const auto divides = [](int of, int size) { return of == 0 || size % of == 0; };
  return divides(spec.block.cols, along) && divides(spec.block.rows, across) &&
         divides(spec.hadamard.size, along) && divides(2, along) &&
         (spec.rounding == Rounding::kNearest || divides(16, along));
}

// A backend for every instruction set that this processor has, with each number of threads.
inline std::vector<std::unique_ptr<CpuBackend>> Backends(const std::vector<int>& threads) {
  std::vector<std::unique_ptr<CpuBackend>> backends;
  for (const cpu::Isa isa : cpu::SupportedIsas()) {
    for (const int count : threads) {
      backends.push_back(*CpuBackend::Create({.threads = count, .isa = isa}));
    }
  }
  return backends;
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_QUANTIZE_TESTING_H_
