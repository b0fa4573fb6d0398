#include "worker/trainer/model/head.h"

#include <algorithm>

namespace nibble {
namespace {

// A chunk's logits and their gradient. Small chunks read and write the weight's FP32 gradient more
// often: at this size and d_model 512 to 2048 the two costs are of one order.
constexpr int64_t kChunkBytes = int64_t{128} << 20;
constexpr int64_t kFewestRows = 128;
constexpr int64_t kMostRows = 2048;

}  // namespace

absl::StatusOr<Head> Head::Create(const Device& device, const Parameters& parameters, DType dtype) {
  Head head(device, dtype);
  const Outline& outline = parameters.outline();
  head.tied_ = outline.spec.tied_head;
  const absl::StatusOr<int64_t> param =
      outline.Find(head.tied_ ? "embedding.weight" : "head.weight");
  if (!param.ok()) return param.status();
  head.param_ = *param;
  head.vocab_ = outline.spec.vocab;
  head.d_model_ = outline.spec.d_model;
  head.weight_ = parameters.weight(*param);
  head.dweight_ = parameters.gradient(*param);
  return head;
}

absl::Status Head::Allocate(int64_t tokens, Region& step, Region& scratch) {
  const bool f32 = dtype_ == DType::kF32;
  const int64_t row_bytes = vocab_ * (f32 ? 4 : 6);
  chunk_rows_ = std::clamp(kChunkBytes / row_bytes / 64 * 64, kFewestRows, kMostRows);
  chunk_rows_ = std::min(chunk_rows_, tokens);
  absl::Status status = logits_.Allocate(scratch, DType::kF32, chunk_rows_, vocab_);
  if (status.ok() && !f32) {
    status = dlogits_.Allocate(scratch, dtype_, chunk_rows_, vocab_);
    if (status.ok()) status = bf16_weight_.Allocate(step, dtype_, vocab_, d_model_);
  }
  return status;
}

absl::Status Head::PrepareWeights() {
  if (dtype_ == DType::kF32) return absl::OkStatus();
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
    absl::Status status = Logits(Rows(x, row, rows), logits);
    if (status.ok()) {
      status = device_.ops.token().Run(
          CrossEntropy{.logits = Const(logits), .targets = targets + row, .loss = loss + row});
    }
    if (!status.ok()) return status;
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
      // A tied weight's gradient also has the embedding's part: it starts from zero.
      wgrad.accumulate = tied_ || !context.first_micro_batch || row > 0;
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
