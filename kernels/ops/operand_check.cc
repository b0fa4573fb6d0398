#include "kernels/ops/operand_check.h"

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"

namespace nibble {
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

OperandCheck& OperandCheck::Layout(const SequenceLayout& layout, std::string_view states_name,
                                   size_t states) {
  That(layout.sequences >= 0 && layout.length >= 0, "layout of ", layout.sequences,
       " sequences of length ", layout.length, ": neither may be negative");
  That(layout.continued.empty() || (layout.tokens() > 0 && layout.sequences == 0 &&
                                    layout.length == 0 && layout.doc_begin == nullptr),
       "the layout has whole sequences beside ", layout.continued.size(), " continuations");
  constexpr int64_t kLongest = std::numeric_limits<int32_t>::max();
  int64_t row = 0;
  for (size_t i = 0; status_.ok() && i < layout.continued.size(); ++i) {
    const Continuation& piece = layout.continued[i];
    That(piece.row == row && piece.rows >= 1, "continuation ", i, " has ", piece.rows,
         " rows from row ", piece.row, " on; it must begin at row ", row, " and have at least 1");
    That(piece.position >= 0 && piece.position <= kLongest - piece.rows, "continuation ", i,
         " is at position ", piece.position, ", not in [0, ", kLongest - piece.rows, "]");
    row += piece.rows;
  }
  return That(states == layout.continued.size(), Text(states_name), ": ", states, " for ",
              layout.continued.size(), " continuations");
}

}  // namespace nibble
