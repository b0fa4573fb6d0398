// What every layer operation asks of its operands before it runs: that matrices are there, have the
// shape and type that others imply, and that pointers which it will read are not null.
//
// Ownership: borrows. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_MATRIX_CHECK_H_
#define NIBBLE_KERNELS_CPU_LAYERS_MATRIX_CHECK_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/tensor/matrix.h"

namespace nibble::cpu {

inline ConstMatrix View(const MutableMatrix& m) {
  return {m.data, m.dtype, m.rows, m.cols, m.stride};
}

// "[3, 64] bf16".
std::string Describe(const ConstMatrix& m);

// Collects the first thing wrong with the operands of one operation; the checks after it do
// nothing.
class OperandCheck {
 public:
  explicit OperandCheck(std::string_view operation) : operation_(operation) {}

  // Sizes are not negative, rows do not overlap, and there is data where there are elements.
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
  // Not null where there are elements.
  OperandCheck& Pointer(std::string_view name, const void* pointer, int64_t elements);
  // `holds`, or InvalidArgument: "<operation>: <pieces, joined>".
  template <class... Piece>
  OperandCheck& That(bool holds, const Piece&... pieces) {
    if (status_.ok() && !holds) Fail(absl::StrCat(pieces...));
    return *this;
  }

  absl::Status status() const { return status_; }

 private:
  void Fail(std::string_view message);

  std::string_view operation_;
  absl::Status status_;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_MATRIX_CHECK_H_
