#include <cmath>
#include <utility>

#include "common/status_macros.h"
#include "worker/trainer/model/mixer.h"
#include "worker/trainer/model/region.h"

namespace nibble {
namespace {

class AttentionMixer : public Mixer {
 public:
  AttentionMixer(const Device& device, const ModelSpec& spec, Linear qkv, Linear out, DType dtype)
      : device_(device),
        shape_({.heads = static_cast<int>(spec.heads),
                .kv_heads = static_cast<int>(spec.kv_heads),
                .head_dim = static_cast<int>(spec.head_dim),
                .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)))}),
        rope_(spec.positions == Positions::kRope),
        theta_(spec.rope_theta),
        dtype_(dtype),
        qkv_(std::move(qkv)),
        out_(std::move(out)) {}

  std::vector<Linear*> linears() override { return {&qkv_, &out_}; }
  bool keeps_input() const override { return qkv_.keeps_input(); }

  absl::Status Allocate(int64_t tokens, const Places& places) override {
    const int64_t heads_cols = shape_.out_cols();
    absl::Status status = qkv_.Allocate(tokens, places);
    if (status.ok()) status = out_.Allocate(tokens, places);
    // Attention's backward pass reads q, k, v and its own output.
    if (status.ok()) status = projected_.Allocate(places.saved, dtype_, tokens, shape_.qkv_cols());
    if (status.ok()) status = mixed_.Allocate(places.saved, dtype_, tokens, heads_cols);
    if (status.ok()) status = AllocateFloats(places.saved, tokens * shape_.heads, lse_);
    if (status.ok()) {
      status = dprojected_.Allocate(places.scratch, dtype_, tokens, shape_.qkv_cols());
    }
    if (status.ok()) status = dmixed_.Allocate(places.scratch, dtype_, tokens, heads_cols);
    return status;
  }

  absl::Status Forward(const StepContext& context, const ConstMatrix& x,
                       const MutableMatrix& y) override {
    absl::Status status = qkv_.Forward(context, x, projected_.mut());
    if (status.ok()) status = qkv_.AddBias(projected_.mut());
    if (status.ok()) status = Rotate(context, projected_.mut(), /*inverse=*/false);
    if (status.ok()) {
      status = device_.ops.attention().Forward(AttentionForward{.shape = shape_,
                                                                .layout = context.layout,
                                                                .qkv = projected_.view(),
                                                                .out = mixed_.mut(),
                                                                .lse = lse_.data<float>()});
    }
    if (status.ok()) status = out_.Forward(context, mixed_.view(), y);
    if (status.ok()) status = out_.AddBias(y);
    return status;
  }

  absl::Status Backward(const StepContext& context, const ConstMatrix& x, const ConstMatrix& dy,
                        const MutableMatrix& dx) override {
    absl::Status status = out_.Backward(context, mixed_.view(), dy, dmixed_.mut());
    if (status.ok()) {
      status = device_.ops.attention().Backward({.shape = shape_,
                                                 .layout = context.layout,
                                                 .qkv = projected_.view(),
                                                 .out = mixed_.view(),
                                                 .dout = dmixed_.view(),
                                                 .lse = lse_.data<float>(),
                                                 .dqkv = dprojected_.mut()});
    }
    if (status.ok()) status = Rotate(context, dprojected_.mut(), /*inverse=*/true);
    if (status.ok()) status = qkv_.Backward(context, x, dprojected_.view(), dx);
    return status;
  }

 private:
  absl::Status Rotate(const StepContext& context, const MutableMatrix& qkv, bool inverse) {
    if (!rope_) return absl::OkStatus();
    return device_.ops.attention().Run(Rope{.shape = shape_,
                                            .layout = context.layout,
                                            .qkv = qkv,
                                            .theta = theta_,
                                            .inverse = inverse});
  }

  Device device_;
  AttentionShape shape_;
  bool rope_;
  double theta_;
  DType dtype_;
  Linear qkv_, out_;
  ActivationBuffer projected_;  // [tokens, qkv_cols], rotated
  ActivationBuffer mixed_;      // [tokens, heads·head_dim]
  Buffer lse_;                  // [heads, tokens]
  ActivationBuffer dprojected_, dmixed_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> MakeAttentionMixer(const Device& device,
                                                          const Parameters& parameters,
                                                          int64_t block, DType dtype) {
  NIBBLE_ASSIGN_OR_RETURN(const int64_t qkv,
                          FindLinear(parameters.outline(), block, "attention.qkv"));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t out,
                          FindLinear(parameters.outline(), block, "attention.out"));
  return std::make_unique<AttentionMixer>(device, parameters.outline().spec,
                                          Linear(device, parameters, qkv, dtype),
                                          Linear(device, parameters, out, dtype), dtype);
}

}  // namespace nibble
