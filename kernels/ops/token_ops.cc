#include "kernels/ops/token_ops.h"

#include <cmath>
#include <limits>

#include "kernels/ops/operand_check.h"

namespace nibble {
namespace {

// `matrix`: out or dout. Layout() has passed.
template <class Matrix>
OperandCheck& CheckRows(OperandCheck& check, const SequenceLayout& layout, const char* matrix_name,
                        const Matrix& matrix, const int32_t* tokens) {
  return check
      .That(layout.tokens() <= std::numeric_limits<int32_t>::max(), "layout has ", layout.tokens(),
            " tokens, above 2^31 - 1")
      .Shape(matrix_name, matrix, layout.tokens(), matrix.cols)
      .Pointer("tokens", tokens, layout.tokens());
}

}  // namespace

absl::Status Validate(const EmbeddingForward& request) {
  const ConstMatrix &table = request.table, &at = request.positions;
  const MutableMatrix& out = request.out;
  OperandCheck check("embedding forward");
  check.Layout(request.layout);
  CheckRows(check, request.layout, "out", out, request.tokens)
      .Shape("table", table, table.rows, out.cols);
  if (at.data != nullptr) {
    check.Shape("positions", at, at.rows, out.cols)
        .That(at.dtype == table.dtype, "positions is ", Describe(at), " but table is ",
              Describe(table));
  }
  return check.status();
}

absl::Status Validate(const EmbeddingBackward& request) {
  const ConstMatrix& dout = request.dout;
  OperandCheck check("embedding backward");
  check.WholeSequences(request.layout);
  return CheckRows(check, request.layout, "dout", dout, request.tokens)
      .That(request.vocab >= 0, "vocab is ", request.vocab, ", below 0")
      .Pointer("dtable", request.dtable, request.vocab * dout.cols)
      .status();
}

absl::Status Validate(const CrossEntropy& request) {
  const ConstMatrix& logits = request.logits;
  const MutableMatrix& dlogits = request.dlogits;
  OperandCheck check("cross entropy");
  check.Present("logits", logits)
      .Pointer("targets", request.targets, logits.rows)
      .Pointer("loss", request.loss, logits.rows)
      .That(std::isfinite(request.scale), "scale is ", request.scale);
  if (dlogits.data != nullptr) {
    check.Shape("dlogits", dlogits, logits.rows, logits.cols)
        .That(dlogits.data != logits.data ||
                  (dlogits.dtype == logits.dtype && dlogits.stride == logits.stride),
              "dlogits lies on logits but not element on element: ", Describe(View(dlogits)),
              ", stride ", dlogits.stride, " on ", Describe(logits), ", stride ", logits.stride);
  }
  return check.status();
}

}  // namespace nibble
