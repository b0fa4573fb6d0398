// A matrix for timing operations; its elements are small and finite in both types.
//
// Ownership: owns its elements. Thread-safety: a value.
#ifndef NIBBLE_BENCH_LAYERS_OPERAND_H_
#define NIBBLE_BENCH_LAYERS_OPERAND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor/matrix.h"

namespace nibble::bench {

struct Operand {
  Operand(DType dtype, int64_t rows, int64_t cols)
      : bytes(rows * cols * DTypeBytes(dtype), 0x3c),
        in{bytes.data(), dtype, rows, cols, cols},
        out{bytes.data(), dtype, rows, cols, cols} {}
  Operand(const Operand&) = delete;

  int64_t size() const { return static_cast<int64_t>(bytes.size()); }

  std::vector<char> bytes;
  ConstMatrix in;
  MutableMatrix out;
};

inline std::string TypeName(DType dtype) { return dtype == DType::kF32 ? "f32" : "bf16"; }

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_LAYERS_OPERAND_H_
