#include "kernels/ops/mamba_ops.h"

#include <cstdint>
#include <span>

#include "kernels/ops/operand_check.h"
#include "model/limits.h"

namespace nibble {
namespace {

OperandCheck& CheckBound(OperandCheck& check, const char* name, int64_t value, int64_t most) {
  return check.That(value >= 1 && value <= most, name, " is ", value, ", outside 1 … ", most);
}

// Each of `elements`.
OperandCheck& CheckStates(OperandCheck& check, const SequenceLayout& layout, const char* name,
                          std::span<float* const> states, int64_t elements) {
  check.Layout(layout, name, states.size());
  for (const float* state : states) check.Pointer(name, state, elements);
  return check;
}

// Layout() has passed.
template <class Request>
OperandCheck& CheckConv(OperandCheck& check, const Request& request) {
  const int64_t channels = request.in.cols;
  CheckBound(check, "width", request.width, kMaxConvWidth);
  check.Shape("in", request.in, request.layout.tokens(), channels)
      .Pointer("weight", request.weight, channels * request.width)
      .Pointer("bias", request.bias, channels);
  return check;
}

// Layout() has passed.
template <class Request>
OperandCheck& CheckScan(OperandCheck& check, const Request& request) {
  const ScanShape& shape = request.shape;
  CheckBound(check, "heads", shape.heads, kMaxWidth);
  CheckBound(check, "head_dim", shape.head_dim, kMaxWidth);
  CheckBound(check, "groups", shape.groups, kMaxWidth);
  CheckBound(check, "state", shape.state, kMaxWidth);
  CheckBound(check, "chunk", shape.chunk, kMaxScanChunk);
  check.That(shape.groups < 1 || shape.heads % shape.groups == 0, "groups ", shape.groups,
             " do not divide heads ", shape.heads);
  const int64_t tokens = request.layout.tokens();
  check.Shape("xbc", request.xbc, tokens, shape.xbc_cols())
      .Shape("dt", request.dt, tokens, shape.heads)
      .That(request.dt.dtype == request.xbc.dtype, "dt is ", Describe(request.dt), " but xbc is ",
            Describe(request.xbc))
      .Pointer("dt_bias", request.params.dt_bias, shape.heads)
      .Pointer("a_log", request.params.a_log, shape.heads)
      .Pointer("d", request.params.d, shape.heads);
  return check;
}

// xbc's type, and [tokens, heads · head_dim].
template <class Matrix>
OperandCheck& CheckInner(OperandCheck& check, const char* name, const Matrix& m,
                         const ScanShape& shape, const ConstMatrix& xbc) {
  ConstMatrix like = xbc;
  like.cols = shape.d_inner();
  return check.Same(name, m, "a matrix of xbc's rows and type by heads · head_dim", like);
}

}  // namespace

absl::Status Validate(const ConvForward& request) {
  OperandCheck check("convolution");
  CheckStates(check, request.layout, "windows", request.windows,
              (request.width - 1) * request.in.cols);
  return CheckConv(check, request).Same("out", request.out, "in", request.in).status();
}

absl::Status Validate(const ConvBackward& request) {
  OperandCheck check("convolution backward");
  const int64_t channels = request.in.cols;
  check.WholeSequences(request.layout);
  return CheckConv(check, request)
      .Same("dout", request.dout, "in", request.in)
      .Same("din", request.din, "in", request.in)
      .Pointer("dweight", request.dweight, channels * request.width)
      .Pointer("dbias", request.dbias, channels)
      .status();
}

absl::Status Validate(const ScanForward& request) {
  OperandCheck check("scan");
  CheckStates(check, request.layout, "states", request.states,
              request.shape.d_inner() * request.shape.state);
  CheckScan(check, request);
  return CheckInner(check, "y", request.y, request.shape, request.xbc).status();
}

absl::Status Validate(const ScanBackward& request) {
  OperandCheck check("scan backward");
  const ScanShape& shape = request.shape;
  check.WholeSequences(request.layout);
  CheckScan(check, request);
  CheckInner(check, "dy", request.dy, shape, request.xbc);
  return check.Same("dxbc", request.dxbc, "xbc", request.xbc)
      .Same("ddt", request.ddt, "dt", request.dt)
      .Pointer("ddt_bias", request.ddt_bias, shape.heads)
      .Pointer("da_log", request.da_log, shape.heads)
      .Pointer("dd", request.dd, shape.heads)
      .status();
}

}  // namespace nibble
