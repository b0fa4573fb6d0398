#include "kernels/cpu/layers/cpu_mamba_ops.h"

#include <cstdint>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/layers/matrix_check.h"
#include "model/limits.h"

namespace nibble {
namespace {

using cpu::OperandCheck;

// Documents begin at their first token. Layout() and the shapes have passed.
OperandCheck& CheckDocuments(OperandCheck& check, const SequenceLayout& layout) {
  if (!check.status().ok() || layout.doc_begin == nullptr) return check;
  for (int64_t s = 0; s < layout.sequences; ++s) {
    const int32_t* begin = layout.doc_begin + s * layout.length;
    for (int64_t t = 0; t < layout.length; ++t) {
      const int32_t running = t == 0 ? 0 : begin[t - 1];
      if (begin[t] == t || begin[t] == running) continue;
      return check.That(false, "doc_begin of token ", t, " of sequence ", s, " is ", begin[t],
                        ", must be ", t,
                        t == 0 ? "" : absl::StrCat(" or, as before it, ", running));
    }
  }
  return check;
}

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
  return CheckDocuments(check, request.layout);
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
      .That(request.dt.dtype == request.xbc.dtype, "dt is ", cpu::Describe(request.dt),
            " but xbc is ", cpu::Describe(request.xbc))
      .Pointer("dt_bias", request.params.dt_bias, shape.heads)
      .Pointer("a_log", request.params.a_log, shape.heads)
      .Pointer("d", request.params.d, shape.heads);
  return CheckDocuments(check, request.layout);
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

absl::Status CpuMambaOps::Forward(const ConvForward& request) {
  OperandCheck check("convolution");
  CheckStates(check, request.layout, "windows", request.windows,
              (request.width - 1) * request.in.cols);
  CheckConv(check, request).Same("out", request.out, "in", request.in);
  if (!check.status().ok() || request.in.rows == 0 || request.in.cols == 0) return check.status();
  if (request.layout.continued.empty()) {
    conv_.Forward(request);
  } else {
    recurrence_.Run(request);
  }
  return absl::OkStatus();
}

absl::Status CpuMambaOps::Backward(const ConvBackward& request) {
  OperandCheck check("convolution backward");
  const int64_t channels = request.in.cols;
  check.WholeSequences(request.layout);
  CheckConv(check, request)
      .Same("dout", request.dout, "in", request.in)
      .Same("din", request.din, "in", request.in)
      .Pointer("dweight", request.dweight, channels * request.width)
      .Pointer("dbias", request.dbias, channels);
  if (!check.status().ok() || request.in.rows == 0 || channels == 0) return check.status();
  conv_.Backward(request);
  return absl::OkStatus();
}

absl::Status CpuMambaOps::Forward(const ScanForward& request) {
  OperandCheck check("scan");
  CheckStates(check, request.layout, "states", request.states,
              request.shape.d_inner() * request.shape.state);
  CheckScan(check, request);
  CheckInner(check, "y", request.y, request.shape, request.xbc);
  if (!check.status().ok() || request.xbc.rows == 0) return check.status();
  if (!request.layout.continued.empty()) {
    recurrence_.Run(request);
  } else if (request.xbc.dtype == DType::kBf16) {
    scan_bf16_.Run(request);
  } else {
    scan_fp32_.Run(request);
  }
  return absl::OkStatus();
}

absl::Status CpuMambaOps::Backward(const ScanBackward& request) {
  OperandCheck check("scan backward");
  const ScanShape& shape = request.shape;
  check.WholeSequences(request.layout);
  CheckScan(check, request);
  CheckInner(check, "dy", request.dy, shape, request.xbc);
  check.Same("dxbc", request.dxbc, "xbc", request.xbc)
      .Same("ddt", request.ddt, "dt", request.dt)
      .Pointer("ddt_bias", request.ddt_bias, shape.heads)
      .Pointer("da_log", request.da_log, shape.heads)
      .Pointer("dd", request.dd, shape.heads);
  if (!check.status().ok() || request.xbc.rows == 0) return check.status();
  if (request.xbc.dtype == DType::kBf16) {
    scan_bf16_.Run(request);
  } else {
    scan_fp32_.Run(request);
  }
  return absl::OkStatus();
}

}  // namespace nibble
