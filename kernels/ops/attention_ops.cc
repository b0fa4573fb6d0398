#include "kernels/ops/attention_ops.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/ops/operand_check.h"

namespace nibble {
namespace {

OperandCheck& CheckHeads(OperandCheck& check, const AttentionShape& shape) {
  return check
      .That(shape.heads > 0 && shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, shape.heads,
            " heads must be a positive multiple of ", shape.kv_heads, " kv_heads")
      .That(shape.head_dim > 0, "head_dim ", shape.head_dim, " must be at least 1");
}

// Layout() has passed.
OperandCheck& CheckLength(OperandCheck& check, const SequenceLayout& layout) {
  constexpr int64_t kLongest = std::numeric_limits<int32_t>::max();
  return check.That(layout.length <= kLongest, layout.sequences, " sequences of length ",
                    layout.length, ": length is at most ", kLongest);
}

// The online softmax takes the largest score; with a negative scale that would be the smallest.
OperandCheck& CheckScale(OperandCheck& check, float scale) {
  return check.That(scale > 0 && std::isfinite(scale), "scale ", scale,
                    " must be positive and finite");
}

}  // namespace

absl::Status Validate(const Rope& request) {
  OperandCheck check("rope");
  CheckHeads(check, request.shape).Layout(request.layout);
  CheckLength(check, request.layout);
  return check.Shape("qkv", request.qkv, request.layout.tokens(), request.shape.qkv_cols())
      .That(request.shape.head_dim % 2 == 0, "head_dim ", request.shape.head_dim, " must be even")
      .That(request.theta > 0 && std::isfinite(request.theta), "theta ", request.theta,
            " must be positive and finite")
      .status();
}

absl::Status Validate(const AttentionForward& request) {
  OperandCheck check("attention forward");
  CheckHeads(check, request.shape);
  CheckScale(check, request.shape.scale).Layout(request.layout, "caches", request.caches.size());
  CheckLength(check, request.layout);
  for (size_t i = 0; check.status().ok() && i < request.caches.size(); ++i) {
    const KvCache& cache = request.caches[i];
    const Continuation& piece = request.layout.continued[i];
    check.That(cache.keys != nullptr && cache.values != nullptr, "cache ", i, " has no memory")
        .That(piece.position + piece.rows <= cache.capacity, "cache ", i, " has a capacity of ",
              cache.capacity, " tokens, below the ", piece.position + piece.rows,
              " of its sequence");
  }
  const int64_t tokens = request.layout.tokens();
  return check.Shape("qkv", request.qkv, tokens, request.shape.qkv_cols())
      .Shape("out", request.out, tokens, request.shape.out_cols())
      .That(request.out.dtype == request.qkv.dtype, "out is ", Describe(View(request.out)),
            " but qkv is ", Describe(request.qkv))
      .Pointer("lse", request.lse,
               request.layout.continued.empty() ? tokens * request.shape.heads : 0)
      .status();
}

absl::Status Validate(const AttentionBackward& request) {
  OperandCheck check("attention backward");
  CheckHeads(check, request.shape);
  CheckScale(check, request.shape.scale).WholeSequences(request.layout);
  CheckLength(check, request.layout);
  const int64_t tokens = request.layout.tokens();
  return check.Shape("qkv", request.qkv, tokens, request.shape.qkv_cols())
      .Same("dqkv", request.dqkv, "qkv", request.qkv)
      .Shape("out", request.out, tokens, request.shape.out_cols())
      .That(request.out.dtype == request.qkv.dtype, "out is ", Describe(request.out),
            " but qkv is ", Describe(request.qkv))
      .Same("dout", request.dout, "out", request.out)
      .Pointer("lse", request.lse, tokens * request.shape.heads)
      .status();
}

}  // namespace nibble
