#include "kernels/ops/quantize.h"

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

absl::Status ValidateCopy(const QuantizeRequest& request, const CopyRequest& copy,
                          Orientation orientation, const char* which) {
  if (copy.out == nullptr) return absl::OkStatus();
  const QuantizedTensor& out = *copy.out;
  if (out.head() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(which, " copy: the output was never created"));
  }
  if (out.orientation() != orientation) {
    return absl::InvalidArgumentError(
        absl::StrCat(which, " copy: the output is a ", out.Name(), ", of the other orientation"));
  }
  if (out.rows() != request.x.rows || out.cols() != request.x.cols) {
    return absl::InvalidArgumentError(absl::StrCat(which, " copy: the output is a ", out.Name(),
                                                   ", the source is [", request.x.rows, ", ",
                                                   request.x.cols, "]"));
  }
  const Placement& place = request.placement;
  const int64_t along = orientation == Orientation::kRow ? place.first_col : place.first_row;
  const int64_t global = orientation == Orientation::kRow ? place.global_cols : place.global_rows;
  if (out.spec().rounding == Rounding::kStochastic && along > 0 && global == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(which, " copy: placement at ", along,
                     " lacks the size of the unsharded tensor, which random bits depend on"));
  }
  if (out.spec().rounding == Rounding::kStochastic && (along % 16 != 0 || global % 16 != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(which, " copy: placement at ", along, " of ", global,
                     " is not a multiple of the 16 elements that share random bits"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const QuantizeRequest& request) {
  const ConstMatrix& x = request.x;
  if (request.row.out == nullptr && request.column.out == nullptr) {
    return absl::InvalidArgumentError("quantise: neither a row nor a column copy is requested");
  }
  if (x.rows < 0 || x.cols < 0 || x.stride < x.cols || (x.data == nullptr && x.rows * x.cols > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("quantise: source [", x.rows, ", ", x.cols,
                                                   "] with row stride ", x.stride,
                                                   x.data == nullptr ? " and no data" : ""));
  }
  if (request.squared_relu && x.dtype != DType::kBf16) {
    return absl::InvalidArgumentError("quantise: the squared ReLU is of BF16 only, x is FP32");
  }
  const Placement& place = request.placement;
  if (place.first_row < 0 || place.first_col < 0 ||
      (place.global_rows != 0 && place.first_row + x.rows > place.global_rows) ||
      (place.global_cols != 0 && place.first_col + x.cols > place.global_cols)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "placement: [", x.rows, ", ", x.cols, "] at (", place.first_row, ", ", place.first_col,
        ") does not lie in the unsharded [", place.global_rows, ", ", place.global_cols, "]"));
  }
  absl::Status status = ValidateCopy(request, request.row, Orientation::kRow, "row");
  if (status.ok()) {
    status = ValidateCopy(request, request.column, Orientation::kColumn, "column");
  }
  return status;
}

}  // namespace nibble
