#include "kernels/ops/elementwise_ops.h"

#include "common/status_macros.h"
#include "kernels/ops/operand_check.h"

namespace nibble {
namespace {

OperandCheck CheckActivation(const char* operation, Activation kind, const ConstMatrix& in,
                             const char* out_name, const ConstMatrix& out) {
  OperandCheck check(operation);
  const bool gated = kind == Activation::kSwiglu;
  check.That(kind <= Activation::kSwiglu, "kind is ", static_cast<int>(kind),
             ", which is not an activation");
  check.Present("in", in).Shape(out_name, out, in.rows, gated ? in.cols / 2 : in.cols);
  check.That(!gated || in.cols % 2 == 0, "in has ", in.cols,
             " columns, which are not gate | up of equal width");
  check.That(out.dtype == in.dtype, out_name, " is of another type than in, which is ",
             in.dtype == DType::kF32 ? "f32" : "bf16");
  return check;
}

template <class Request>
absl::Status CheckFromTo(const char* operation, const Request& request) {
  return OperandCheck(operation)
      .Present("from", request.from)
      .Shape("to", request.to, request.from.rows, request.from.cols)
      .status();
}

}  // namespace

absl::Status Validate(const ActivationForward& request) {
  return CheckActivation("activation forward", request.kind, request.in, "out", View(request.out))
      .status();
}

absl::Status Validate(const ActivationBackward& request) {
  return CheckActivation("activation backward", request.kind, request.in, "dout", request.dout)
      .Same("din", request.din, "in", request.in)
      .status();
}

absl::Status Validate(const BiasForward& request) {
  return OperandCheck("bias forward")
      .Present("y", request.y)
      .Pointer("bias", request.bias, request.y.cols)
      .status();
}

absl::Status Validate(const BiasBackward& request) {
  return OperandCheck("bias backward")
      .Present("dy", request.dy)
      .Pointer("dbias", request.dbias, request.dy.cols)
      .status();
}

absl::Status Validate(const Cast& request) { return CheckFromTo("cast", request); }
absl::Status Validate(const Accumulate& request) { return CheckFromTo("accumulate", request); }

absl::Status Validate(const CopyParts& request) {
  for (size_t i = 0; i < request.parts.size(); ++i) {
    const CopyParts::Part& part = request.parts[i];
    OperandCheck check("copies");
    check
        .That(part.as <= CopyParts::As::kRounded, "as of part ", i, " is ",
              static_cast<int>(part.as), ", which is no kind of copy")
        .That(part.elements >= 0 && part.lines >= 0, "part ", i, " has ", part.lines, " lines of ",
              part.elements, " elements, below 0")
        .Pointer("to", part.to, part.elements * part.lines)
        .Pointer("from", part.from, part.elements * part.lines);
    const auto check_pitch = [&](const char* name, int64_t pitch, int64_t size) {
      if (part.lines <= 1) return;
      check.That(pitch >= part.elements * size && pitch % size == 0, name, " of part ", i, " is ",
                 pitch, " bytes for lines of ", part.elements, " elements of ", size);
    };
    check_pitch("to_pitch", part.to_pitch, part.to_size());
    check_pitch("from_pitch", part.from_pitch, part.from_size());
    NIBBLE_RETURN_IF_ERROR(check.status());
  }
  return absl::OkStatus();
}

absl::Status Validate(const FillInitial& request) {
  return OperandCheck("initial values")
      .That(request.init <= Init::kMambaDecay, "init is ", static_cast<int>(request.init),
            ", which is no kind of initial values")
      .That(request.n >= 0, "n is ", request.n, ", below 0")
      .Pointer("out", request.out, request.n)
      .status();
}

absl::Status ValidateZero(const void* data, int64_t bytes) {
  return OperandCheck("zero")
      .That(bytes >= 0, "bytes is ", bytes, ", below 0")
      .That(bytes <= 0 || data != nullptr, "data is null, bytes is ", bytes)
      .status();
}

}  // namespace nibble
