// Memory planning for the model, so that no step allocates, and shorthand for planned activations.
//
// Ownership: a Region owns its one allocation; buffers from it point into it and own nothing; its
// parent memory outlives it. An ActivationBuffer owns its buffer. Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_REGION_H_
#define NIBBLE_WORKER_TRAINER_MODEL_REGION_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "kernels/tensor/matrix.h"
#include "kernels/tensor/memory.h"

namespace nibble {

// A planned region: all buffers are requested once to measure it, then it is committed in one
// allocation, then the same buffers are requested again in the same order. It is a Memory, so that
// quantised tensors and plain buffers are planned in the same way.
class Region : public Memory {
 public:
  explicit Region(Memory& parent) : parent_(parent) {}

  // Before Commit(): a placeholder address that must not be accessed; afterwards the real one.
  // Internal if more is requested than was measured.
  absl::StatusOr<Buffer> Allocate(size_t bytes) override;
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override;
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override;

  // Makes the memory of all buffers so far available to the next ones.
  void Rewind() { used_ = 0; }
  // Allocates the peak size, and rewinds.
  absl::Status Commit();
  // Resets the measurement and frees the memory; its buffers become invalid.
  void Clear();

  size_t bytes() const { return committed_ ? memory_.bytes() : peak_; }
  // After Commit(): where the memory begins.
  const char* data() const { return memory_.data<char>(); }

  // Buffers begin at multiples of it.
  static constexpr size_t kAlign = 256;

 private:
  void Free(void*) override {}

  Memory& parent_;
  Buffer memory_;
  bool committed_ = false;
  size_t used_ = 0;
  size_t peak_ = 0;
};

// The regions of a layer's tensors, by lifetime.
struct Places {
  Region& step;       // written at the start of a step, read through all of it
  Region& figures;    // heads of quantised copies: from their writing to the end of the step
  Region& saved;      // from a block's forward to its backward pass
  Region& scratch;    // within one pass of one block
  Region& transient;  // within one call of one linear layer, which rewinds it
};

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

// A matrix of activations and its buffer.
class ActivationBuffer {
 public:
  absl::Status Allocate(Memory& memory, DType dtype, int64_t rows, int64_t cols) {
    NIBBLE_ASSIGN_OR_RETURN(Buffer buffer,
                            memory.Allocate(static_cast<size_t>(rows * cols * DTypeBytes(dtype))));
    buffer_ = std::move(buffer);
    matrix_ = {buffer_.data(), dtype, rows, cols, cols};
    return absl::OkStatus();
  }

  const MutableMatrix& mut() const { return matrix_; }
  ConstMatrix view() const { return Const(matrix_); }
  // The first `rows` rows: a pass may have fewer than were planned.
  MutableMatrix rows(int64_t rows) const { return Rows(matrix_, 0, rows); }

 private:
  Buffer buffer_;
  MutableMatrix matrix_;
};

// [n] FP32.
inline absl::Status AllocateFloats(Memory& memory, int64_t n, Buffer& out) {
  NIBBLE_ASSIGN_OR_RETURN(Buffer buffer, memory.Allocate(static_cast<size_t>(n) * sizeof(float)));
  out = std::move(buffer);
  return absl::OkStatus();
}

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_REGION_H_
