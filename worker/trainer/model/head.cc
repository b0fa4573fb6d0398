#include "worker/trainer/model/head.h"

#include <algorithm>

#include "common/status_macros.h"

namespace nibble {

namespace {

// A chunk's logits and their gradient take Backend::chunk_bytes(). Small chunks read and write the
// weight's FP32 gradient more often, which costs about d_model / rows of the cost of the logits.
constexpr int64_t kFewestRows = 128;
constexpr int64_t kFewestRowBytes = int64_t{64} << 10;  // narrower rows count as this many

}  // namespace

absl::StatusOr<Head> Head::Create(const Device& device, const Parameters& parameters, DType dtype) {
  Head head(device, dtype);
  const Outline& outline = parameters.outline();
  head.tied_ = outline.spec.tied_head;
  NIBBLE_ASSIGN_OR_RETURN(const int64_t param,
                          outline.Find(head.tied_ ? "embedding.weight" : "head.weight"));
  head.param_ = param;
  head.vocab_ = outline.spec.vocab;
  head.d_model_ = outline.spec.d_model;
  head.weight_ = parameters.weight(param);
  head.dweight_ = parameters.gradient(param);
  return head;
}

absl::Status Head::Allocate(int64_t tokens, Region& step, Region& scratch) {
  const bool f32 = dtype_ == DType::kF32;
  const int64_t row_bytes = vocab_ * (f32 ? 4 : 6);
  const int64_t rows =
      device_.backend.chunk_bytes() / std::max(row_bytes, kFewestRowBytes) / 64 * 64;
  chunk_rows_ = std::min(std::max(rows, kFewestRows), tokens);
  absl::Status status = logits_.Allocate(scratch, DType::kF32, chunk_rows_, vocab_);
  if (status.ok() && !f32) {
    status = dlogits_.Allocate(scratch, dtype_, chunk_rows_, vocab_);
    if (status.ok()) status = bf16_weight_.Allocate(step, dtype_, vocab_, d_model_);
  }
  return status;
}

uint16_t* Head::bf16_weight() const { return tied_ ? nullptr : working_copy(); }

uint16_t* Head::working_copy() const {
  return dtype_ == DType::kF32 ? nullptr : static_cast<uint16_t*>(bf16_weight_.mut().data);
}

absl::Status Head::PrepareWeights() {
  if (dtype_ == DType::kF32 || bf16_arrives_) return absl::OkStatus();
  return device_.ops.elementwise().Run(
      Cast{.from = ConstMatrix::Of(weight_, vocab_, d_model_), .to = bf16_weight_.mut()});
}

ConstMatrix Head::weight() const {
  return dtype_ == DType::kF32 ? ConstMatrix::Of(weight_, vocab_, d_model_) : bf16_weight_.view();
}

absl::Status Head::Logits(const ConstMatrix& x, const MutableMatrix& logits) {
  return device_.gemm.Gemm(Fprop(x, weight(), logits));
}

absl::Status Head::Loss(const ConstMatrix& x, const int32_t* targets, float* loss) {
  for (int64_t row = 0; row < x.rows; row += chunk_rows_) {
    const int64_t rows = std::min(chunk_rows_, x.rows - row);
    const MutableMatrix logits = Rows(logits_.mut(), 0, rows);
    NIBBLE_RETURN_IF_ERROR(Logits(Rows(x, row, rows), logits));
    NIBBLE_RETURN_IF_ERROR(device_.ops.token().Run(
        CrossEntropy{.logits = Const(logits), .targets = targets + row, .loss = loss + row}));
  }
  return absl::OkStatus();
}

absl::Status Head::LossAndGradient(const StepContext& context, const ConstMatrix& x,
                                   const int32_t* targets, float scale, float* loss,
                                   const MutableMatrix& dx) {
  for (int64_t row = 0; row < x.rows; row += chunk_rows_) {
    const int64_t rows = std::min(chunk_rows_, x.rows - row);
    const ConstMatrix chunk = Rows(x, row, rows);
    const MutableMatrix logits = Rows(logits_.mut(), 0, rows);
    const MutableMatrix dlogits = dtype_ == DType::kF32 ? logits : Rows(dlogits_.mut(), 0, rows);
    absl::Status status = Logits(chunk, logits);
    if (status.ok()) {
      status = device_.ops.token().Run(CrossEntropy{.logits = Const(logits),
                                                    .targets = targets + row,
                                                    .loss = loss + row,
                                                    .scale = scale,
                                                    .dlogits = dlogits});
    }
    if (status.ok()) {
      GemmRequest wgrad =
          Wgrad(Const(dlogits), chunk, MutableMatrix::Of(dweight_, vocab_, d_model_));
      // A tied weight's gradient also gets the embedding's part, so it starts from zero.
      wgrad.accumulate = tied_ || !context.new_gradients || row > 0;
      status = device_.gemm.Gemm(wgrad);
    }
    if (status.ok()) {
      status = device_.gemm.Gemm(Dgrad(Const(dlogits), weight(), Rows(dx, row, rows)));
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace nibble
