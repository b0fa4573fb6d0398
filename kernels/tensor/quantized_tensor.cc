#include "kernels/tensor/quantized_tensor.h"

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

absl::Status CheckMultiple(const char* dimension, int64_t size, int64_t of, const char* what,
                           const std::string& spec) {
  if (of == BlockShape::kWhole || size % of == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      dimension, " = ", size, " is not a multiple of the ", what, " ", of, " of ", spec));
}

absl::Status CheckShape(const QuantizedTensor::Options& options) {
  if (absl::Status status = options.spec.Validate(); !status.ok()) return status;
  constexpr int64_t kLargest = int64_t{1} << 40;
  if (options.rows < 0 || options.cols < 0 ||
      (options.cols != 0 && options.rows > kLargest / options.cols)) {
    return absl::InvalidArgumentError(absl::StrCat("shape [", options.rows, ", ", options.cols,
                                                   "] is negative or has more than 2^40 elements"));
  }
  const bool column = options.orientation == Orientation::kColumn;
  const char* along = column ? "rows" : "columns";
  const char* across = column ? "columns" : "rows";
  const int64_t copy_cols = column ? options.rows : options.cols;
  const int64_t copy_rows = column ? options.cols : options.rows;
  const OperandSpec& spec = options.spec;
  const std::string name = spec.Name();
  absl::Status status = CheckMultiple(along, copy_cols, spec.block.cols, "block", name);
  if (status.ok()) status = CheckMultiple(across, copy_rows, spec.block.rows, "block", name);
  if (status.ok() && spec.hadamard.size != 0) {
    status = CheckMultiple(along, copy_cols, spec.hadamard.size, "Hadamard size", name);
  }
  if (status.ok() && spec.rounding == Rounding::kStochastic) {
    status = CheckMultiple(along, copy_cols, 16, "group of random bits", name);
  }
  if (status.ok() && Info(spec.format).element == Element::kE2M1) {
    status = CheckMultiple(along, copy_cols, 2, "packing of two per byte", name);
  }
  return status;
}

}  // namespace

absl::StatusOr<QuantizedTensor> QuantizedTensor::Create(Memory& memory, const Options& options) {
  if (absl::Status status = CheckShape(options); !status.ok()) return status;
  QuantizedTensor tensor;
  tensor.options_ = options;
  const auto allocate_in = [](Memory& where, Buffer& buffer, int64_t bytes) -> absl::Status {
    absl::StatusOr<Buffer> result = where.Allocate(static_cast<size_t>(bytes));
    if (result.ok()) buffer = *std::move(result);
    return result.status();
  };
  const auto allocate = [&](Buffer& buffer, int64_t bytes) {
    return allocate_in(memory, buffer, bytes);
  };
  absl::Status status = allocate_in(options.figures == nullptr ? memory : *options.figures,
                                    tensor.head_, sizeof(QuantHead));
  if (status.ok() && options.packed) {
    status = allocate(tensor.codes_, tensor.code_bytes());
    if (status.ok()) status = allocate(tensor.scales_, tensor.scale_bytes());
  }
  if (status.ok() && options.emulated != EmulatedLayout::kNone) {
    status = allocate(tensor.emulated_, options.rows * options.cols * int64_t{sizeof(uint16_t)});
  }
  if (!status.ok()) return status;
  return tensor;
}

int64_t QuantizedTensor::block_rows() const {
  const int64_t rows = options_.spec.block.rows;
  return rows == BlockShape::kWhole ? (copy_rows() == 0 ? 1 : copy_rows()) : rows;
}

int64_t QuantizedTensor::block_cols() const {
  const int64_t cols = options_.spec.block.cols;
  return cols == BlockShape::kWhole ? (copy_cols() == 0 ? 1 : copy_cols()) : cols;
}

std::string QuantizedTensor::Name() const {
  return absl::StrCat(spec().Name(), is_column() ? " column" : " row", " copy of [", rows(), ", ",
                      cols(), "]");
}

}  // namespace nibble
