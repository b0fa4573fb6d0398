// The checks that every layer operation makes in its call, on any backend: its matrices have data
// and the shape and type that the others imply, the pointers that it reads are not null, and its
// layout is sound. Nothing in the backend's memory is read.
//
// Ownership: borrows. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_OPS_OPERAND_CHECK_H_
#define NIBBLE_KERNELS_OPS_OPERAND_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/ops/sequence.h"
#include "kernels/tensor/matrix.h"

namespace nibble {

inline ConstMatrix View(const MutableMatrix& m) {
  return {m.data, m.dtype, m.rows, m.cols, m.stride};
}

// "[3, 64] bf16".
std::string Describe(const ConstMatrix& m);

// Keeps the first error found in the operands of one operation; later checks do nothing.
class OperandCheck {
 public:
  explicit OperandCheck(std::string_view operation) : operation_(operation) {}

  // Sizes are not negative, rows do not overlap, and data is not null if there are elements.
  OperandCheck& Present(std::string_view name, const ConstMatrix& m);
  OperandCheck& Present(std::string_view name, const MutableMatrix& m) {
    return Present(name, View(m));
  }
  // Present, and of [rows, cols].
  OperandCheck& Shape(std::string_view name, const ConstMatrix& m, int64_t rows, int64_t cols);
  OperandCheck& Shape(std::string_view name, const MutableMatrix& m, int64_t rows, int64_t cols) {
    return Shape(name, View(m), rows, cols);
  }
  // Present, and of the shape and type of `like`.
  OperandCheck& Same(std::string_view name, const ConstMatrix& m, std::string_view like_name,
                     const ConstMatrix& like);
  OperandCheck& Same(std::string_view name, const MutableMatrix& m, std::string_view like_name,
                     const ConstMatrix& like) {
    return Same(name, View(m), like_name, like);
  }
  // Not null if there are elements.
  OperandCheck& Pointer(std::string_view name, const void* pointer, int64_t elements);
  // Sizes are not negative; continuations are not mixed with whole sequences and cover the rows in
  // order; each has one of `states`. Does not read doc_begin.
  OperandCheck& Layout(const SequenceLayout& layout, std::string_view states_name, size_t states);
  OperandCheck& Layout(const SequenceLayout& layout) {
    return Layout(layout, "", layout.continued.size());
  }
  // Layout(), without continuations, as backward passes require.
  OperandCheck& WholeSequences(const SequenceLayout& layout) {
    That(layout.continued.empty(), "continued sequences have no backward pass");
    return Layout(layout);
  }
  // InvalidArgument "<operation>: <pieces, joined>" unless `condition`.
  template <class... Piece>
  OperandCheck& That(bool condition, const Piece&... pieces) {
    if (status_.ok() && !condition) Fail(absl::StrCat(pieces...));
    return *this;
  }

  absl::Status status() const { return status_; }

 private:
  void Fail(std::string_view message);

  std::string_view operation_;
  absl::Status status_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_OPERAND_CHECK_H_
