#include "kernels/gemm/gemm.h"

#include "absl/strings/str_cat.h"
#include "kernels/tensor/hadamard_signs.h"

namespace nibble {
namespace {

std::string Dimensions(int64_t rows, int64_t cols) {
  return absl::StrCat("[", rows, ", ", cols, "]");
}

const char* DTypeName(DType dtype) { return dtype == DType::kF32 ? "f32" : "bf16"; }

const char* SignChoiceName(SignChoice signs) {
  switch (signs) {
    case SignChoice::kFixed:
      return "fixed";
    case SignChoice::kSeeded:
      return "seeded";
    case SignChoice::kNone:
      return "no";
    case SignChoice::kGiven:
      break;
  }
  return "given";
}

HadamardSpec TransformOf(const GemmOperand& operand) {
  return operand.is_quantized() ? operand.quantized().spec().hadamard : HadamardSpec();
}

std::string TransformName(const HadamardSpec& spec) {
  if (spec.size == 0) return "none";
  std::string name =
      absl::StrCat("size ", spec.size, " with ", SignChoiceName(spec.signs), " signs");
  if (spec.signs == SignChoice::kSeeded) absl::StrAppend(&name, " of seed ", spec.seed);
  return name;
}

// Builds refusals, so that each names the whole request in the same way.
class Refusal {
 public:
  explicit Refusal(const GemmRequest& request) : request_(request) {}

  template <class... Parts>
  absl::Status Invalid(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(Operands(), parts...));
  }
  template <class... Parts>
  absl::Status Missing(const Parts&... parts) const {
    return absl::FailedPreconditionError(absl::StrCat(Operands(), parts...));
  }

 private:
  std::string Operands() const {
    return absl::StrCat("GEMM of A = ", request_.a.Name(), " and B = ", request_.b.Name(), ": ");
  }
  const GemmRequest& request_;
};

bool BadView(const void* data, int64_t rows, int64_t cols, int64_t stride) {
  if (rows < 0 || cols < 0 || stride < cols) return true;
  return data == nullptr && rows > 0 && cols > 0;
}

absl::Status CheckOperand(const GemmOperand& operand, const char* which, const Refusal& refuse) {
  if (!operand.is_quantized()) {
    const ConstMatrix& x = operand.matrix();
    if (BadView(x.data, x.rows, x.cols, x.stride)) {
      return refuse.Invalid(which, " is ", Dimensions(x.rows, x.cols), " with stride ", x.stride,
                            x.data == nullptr ? " and no data" : "");
    }
    return absl::OkStatus();
  }
  if (std::get<1>(operand.source) == nullptr) return refuse.Invalid(which, " is a null tensor");
  const QuantizedTensor& tensor = operand.quantized();
  if (!ServesDirection(tensor, operand.contract)) {
    return refuse.Invalid(which, " is quantised along its ",
                          tensor.is_column() ? "rows" : "columns", " in blocks of ",
                          BlockShapeName(tensor.spec().block),
                          ", which do not serve the other direction");
  }
  if (!tensor.packed() && tensor.emulated() == nullptr) {
    return refuse.Missing(which, " has neither codes nor an emulated operand");
  }
  // A scale per tensor follows from amax; finer FP32 scales are only in the packed form.
  const bool one_scale = tensor.spec().block.rows == BlockShape::kWhole;
  if (tensor.format().scale == ScaleKind::kF32 && !one_scale && !tensor.packed()) {
    return refuse.Missing(which, " has no scales: its ", BlockShapeName(tensor.spec().block),
                          " scales are FP32 and not part of the emulated operand, so it must be "
                          "packed too");
  }
  return absl::OkStatus();
}

}  // namespace

std::string GemmOperand::Name() const {
  const char* along = contract == Contract::kCols ? " along its columns" : " along its rows";
  if (!is_quantized()) {
    return absl::StrCat(DTypeName(matrix().dtype), " ", Dimensions(rows(), cols()), along);
  }
  if (std::get<1>(source) == nullptr) return "null";
  return absl::StrCat(quantized().Name(), along);
}

bool ServesDirection(const QuantizedTensor& tensor, Contract contract) {
  const Contract quantized = tensor.is_column() ? Contract::kRows : Contract::kCols;
  const BlockShape block = tensor.spec().block;
  return contract == quantized || block.rows == block.cols;
}

absl::Status Validate(const GemmRequest& request) {
  const GemmOperand& a = request.a;
  const GemmOperand& b = request.b;
  const Refusal refuse(request);
  if (absl::Status status = CheckOperand(a, "A", refuse); !status.ok()) return status;
  if (absl::Status status = CheckOperand(b, "B", refuse); !status.ok()) return status;
  if (a.depth() != b.depth()) {
    return refuse.Invalid("contraction lengths ", a.depth(), " and ", b.depth(), " differ");
  }
  const MutableMatrix& c = request.c;
  if (c.rows != a.lines() || c.cols != b.lines()) {
    return refuse.Invalid("C is ", Dimensions(c.rows, c.cols), ", the result is ",
                          Dimensions(a.lines(), b.lines()));
  }
  if (BadView(c.data, c.rows, c.cols, c.stride)) {
    return refuse.Invalid("C is ", Dimensions(c.rows, c.cols), " with stride ", c.stride,
                          c.data == nullptr ? " and no data" : "");
  }
  const HadamardSpec transform_a = TransformOf(a);
  const HadamardSpec transform_b = TransformOf(b);
  if (!SameTransform(transform_a, transform_b)) {
    return refuse.Invalid("Hadamard transforms differ (A: ", TransformName(transform_a),
                          "; B: ", TransformName(transform_b), "), so they would not cancel");
  }
  if (a.is_quantized() && b.is_quantized()) {
    const OperandSpec& spec_a = a.quantized().spec();
    const OperandSpec& spec_b = b.quantized().spec();
    // Only nvfp4 has formula versions; other formats have no choice that could differ.
    const bool both = spec_a.format == Format::kNvfp4 && spec_b.format == Format::kNvfp4;
    if (both && spec_a.formula != spec_b.formula) {
      return refuse.Invalid("formula versions ", std::string(FormulaVersionName(spec_a.formula)),
                            " and ", std::string(FormulaVersionName(spec_b.formula)), " differ");
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble
