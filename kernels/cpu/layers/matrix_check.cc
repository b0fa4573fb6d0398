#include "kernels/cpu/layers/matrix_check.h"

#include "absl/strings/str_cat.h"

namespace nibble::cpu {
namespace {

// Debian's Abseil is built for C++14: its string_view is not std's.
absl::string_view Text(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

std::string Describe(const ConstMatrix& m) {
  return absl::StrCat("[", m.rows, ", ", m.cols, "] ", m.dtype == DType::kF32 ? "f32" : "bf16");
}

void OperandCheck::Fail(std::string_view message) {
  status_ = absl::InvalidArgumentError(absl::StrCat(Text(operation_), ": ", Text(message)));
}

OperandCheck& OperandCheck::Present(std::string_view name, const ConstMatrix& m) {
  if (!status_.ok()) return *this;
  if (m.rows < 0 || m.cols < 0 || (m.rows > 1 && m.stride < m.cols)) {
    Fail(absl::StrCat(Text(name), " is ", Describe(m), " with row stride ", m.stride));
  } else if (m.data == nullptr && m.rows > 0 && m.cols > 0) {
    Fail(absl::StrCat(Text(name), " is ", Describe(m), " and has no data"));
  }
  return *this;
}

OperandCheck& OperandCheck::Shape(std::string_view name, const ConstMatrix& m, int64_t rows,
                                  int64_t cols) {
  Present(name, m);
  if (status_.ok() && (m.rows != rows || m.cols != cols)) {
    Fail(absl::StrCat(Text(name), " is ", Describe(m), " but must be [", rows, ", ", cols, "]"));
  }
  return *this;
}

OperandCheck& OperandCheck::Same(std::string_view name, const ConstMatrix& m,
                                 std::string_view like_name, const ConstMatrix& like) {
  Present(name, m);
  if (status_.ok() && (m.rows != like.rows || m.cols != like.cols || m.dtype != like.dtype)) {
    Fail(absl::StrCat(Text(name), " is ", Describe(m), " but ", Text(like_name), " is ",
                      Describe(like)));
  }
  return *this;
}

OperandCheck& OperandCheck::Pointer(std::string_view name, const void* pointer, int64_t elements) {
  if (status_.ok() && pointer == nullptr && elements > 0) {
    Fail(absl::StrCat(Text(name), " is null but must hold ", elements, " elements"));
  }
  return *this;
}

}  // namespace nibble::cpu
