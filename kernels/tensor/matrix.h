// A borrowed view of a high-precision matrix in some backend's memory.
//
// Ownership: none; the memory must outlive every operation enqueued on it. Thread-safety: a value.
#ifndef NIBBLE_KERNELS_TENSOR_MATRIX_H_
#define NIBBLE_KERNELS_TENSOR_MATRIX_H_

#include <cstdint>

namespace nibble {

enum class DType : uint8_t { kF32, kBf16 };

inline int DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// [rows, cols], row-major; rows are `stride` elements apart.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  static ConstMatrix Of(const float* data, int64_t rows, int64_t cols) {
    return {data, DType::kF32, rows, cols, cols};
  }
  static ConstMatrix OfBf16(const uint16_t* data, int64_t rows, int64_t cols) {
    return {data, DType::kBf16, rows, cols, cols};
  }
};

struct MutableMatrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  static MutableMatrix Of(float* data, int64_t rows, int64_t cols) {
    return {data, DType::kF32, rows, cols, cols};
  }
  static MutableMatrix OfBf16(uint16_t* data, int64_t rows, int64_t cols) {
    return {data, DType::kBf16, rows, cols, cols};
  }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_TENSOR_MATRIX_H_
