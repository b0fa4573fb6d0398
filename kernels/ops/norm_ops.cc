#include "kernels/ops/norm_ops.h"

#include <cmath>

#include "kernels/ops/operand_check.h"

namespace nibble {
namespace {

void CheckNorm(OperandCheck& check, const NormParams& norm, const ConstMatrix& x) {
  check.That(x.cols > 0, "x has ", x.cols, " columns, which have no mean");
  check.That(norm.eps >= 0 && std::isfinite(norm.eps), "eps is ", norm.eps, ", below 0");
  check.Pointer("weight", norm.weight, x.cols);
  if (norm.centered) check.Pointer("bias", norm.bias, x.cols);
}

void CheckGroups(OperandCheck& check, int groups, const ConstMatrix& y) {
  check.That(groups > 0 && y.cols > 0 && y.cols % groups == 0, "y has ", y.cols,
             " columns, which are not ", groups, " groups of equal width");
}

}  // namespace

absl::Status Validate(const AddNormForward& request) {
  const ConstMatrix& x = request.x;
  OperandCheck check("norm forward");
  check.Present("x", x);
  if (request.y.data != nullptr) {
    check.Same("y", request.y, "x", x).Same("sum", request.sum, "x", x);
  }
  if (request.out.data != nullptr) {
    check.Same("out", request.out, "x", x).Pointer("rstd", request.rstd, x.rows);
    if (request.norm.centered) check.Pointer("mean", request.mean, x.rows);
    CheckNorm(check, request.norm, x);
  } else {
    check.That(request.y.data != nullptr || x.rows == 0,
               "neither y nor out is there: nothing is asked");
  }
  return check.status();
}

absl::Status Validate(const NormBackward& request) {
  const ConstMatrix& x = request.x;
  OperandCheck check("norm backward");
  check.Present("x", x).Same("dout", request.dout, "x", x).Same("dx", request.dx, "x", x);
  if (request.residual.data != nullptr) check.Same("residual", request.residual, "x", x);
  check.Pointer("rstd", request.rstd, x.rows).Pointer("dweight", request.dweight, x.cols);
  if (request.norm.centered) {
    check.Pointer("mean", request.mean, x.rows).Pointer("dbias", request.dbias, x.cols);
  }
  CheckNorm(check, request.norm, x);
  return check.status();
}

absl::Status Validate(const GatedNormForward& request) {
  const ConstMatrix& y = request.y;
  OperandCheck check("gated norm forward");
  check.Present("y", y).Same("z", request.z, "y", y).Same("out", request.out, "y", y);
  CheckGroups(check, request.groups, y);
  return check.Pointer("weight", request.weight, y.cols)
      .Pointer("rstd", request.rstd, y.rows * request.groups)
      .That(request.eps >= 0 && std::isfinite(request.eps), "eps is ", request.eps, ", below 0")
      .status();
}

absl::Status Validate(const GatedNormBackward& request) {
  const ConstMatrix& y = request.y;
  OperandCheck check("gated norm backward");
  check.Present("y", y)
      .Same("z", request.z, "y", y)
      .Same("dout", request.dout, "y", y)
      .Same("dy", request.dy, "y", y)
      .Same("dz", request.dz, "y", y);
  CheckGroups(check, request.groups, y);
  return check.Pointer("weight", request.weight, y.cols)
      .Pointer("rstd", request.rstd, y.rows * request.groups)
      .Pointer("dweight", request.dweight, y.cols)
      .status();
}

}  // namespace nibble
