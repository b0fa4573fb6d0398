// Shorthand for planned activations: a matrix in the model's activation type, and where it lives.
//
// Ownership: an ActivationBuffer owns its place in a Memory. Thread-safety: values.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_TENSORS_H_
#define NIBBLE_WORKER_TRAINER_MODEL_TENSORS_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "kernels/tensor/matrix.h"
#include "kernels/tensor/memory.h"

namespace nibble {

// Columns [first, first + cols) of a matrix.
inline ConstMatrix Columns(const ConstMatrix& m, int64_t first, int64_t cols) {
  return {static_cast<const char*>(m.data) + first * DTypeBytes(m.dtype), m.dtype, m.rows, cols,
          m.stride};
}
inline MutableMatrix Columns(const MutableMatrix& m, int64_t first, int64_t cols) {
  return {static_cast<char*>(m.data) + first * DTypeBytes(m.dtype), m.dtype, m.rows, cols,
          m.stride};
}
// Rows [first, first + rows).
inline ConstMatrix Rows(const ConstMatrix& m, int64_t first, int64_t rows) {
  return {static_cast<const char*>(m.data) + first * m.stride * DTypeBytes(m.dtype), m.dtype, rows,
          m.cols, m.stride};
}
inline MutableMatrix Rows(const MutableMatrix& m, int64_t first, int64_t rows) {
  return {static_cast<char*>(m.data) + first * m.stride * DTypeBytes(m.dtype), m.dtype, rows,
          m.cols, m.stride};
}
inline ConstMatrix Const(const MutableMatrix& m) {
  return {m.data, m.dtype, m.rows, m.cols, m.stride};
}

class ActivationBuffer {
 public:
  absl::Status Allocate(Memory& memory, DType dtype, int64_t rows, int64_t cols) {
    absl::StatusOr<Buffer> buffer =
        memory.Allocate(static_cast<size_t>(rows * cols * DTypeBytes(dtype)));
    if (!buffer.ok()) return buffer.status();
    buffer_ = *std::move(buffer);
    matrix_ = {buffer_.data(), dtype, rows, cols, cols};
    return absl::OkStatus();
  }

  const MutableMatrix& mut() const { return matrix_; }
  ConstMatrix view() const { return Const(matrix_); }

 private:
  Buffer buffer_;
  MutableMatrix matrix_;
};

// [n] FP32.
inline absl::Status AllocateFloats(Memory& memory, int64_t n, Buffer& out) {
  absl::StatusOr<Buffer> buffer = memory.Allocate(static_cast<size_t>(n) * sizeof(float));
  if (!buffer.ok()) return buffer.status();
  out = *std::move(buffer);
  return absl::OkStatus();
}

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_TENSORS_H_
