// Causal grouped-query attention: qkv projection, rotary positions, attention, output projection.
// A sequence keeps its keys and values.
#include <cmath>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "worker/trainer/model/mixer.h"
#include "worker/trainer/model/region.h"

namespace nibble {
namespace {

class AttentionMixer : public Mixer {
 public:
  AttentionMixer(const Device& device, const ModelSpec& spec, int64_t block, Linear qkv, Linear out,
                 DType dtype)
      : device_(device),
        block_(block),
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

  absl::Status AllocateForward(int64_t tokens, const Places& places) override {
    absl::Status status = qkv_.Allocate(tokens, places);
    if (status.ok()) status = out_.Allocate(tokens, places);
    // Attention's backward pass reads q, k, v and its own output.
    if (status.ok()) status = projected_.Allocate(places.saved, dtype_, tokens, shape_.qkv_cols());
    if (status.ok()) status = mixed_.Allocate(places.saved, dtype_, tokens, shape_.out_cols());
    if (status.ok()) status = AllocateFloats(places.saved, tokens * shape_.heads, lse_);
    return status;
  }
  absl::Status AllocateBackward(int64_t tokens, const Places& places) override {
    NIBBLE_RETURN_IF_ERROR(dprojected_.Allocate(places.scratch, dtype_, tokens, shape_.qkv_cols()));
    return dmixed_.Allocate(places.scratch, dtype_, tokens, shape_.out_cols());
  }

  OperationScratch BackwardScratch(const SequenceLayout& layout) const override {
    return {.attention = device_.ops.attention().ScratchBytes(BackwardOf(layout))};
  }

  absl::StatusOr<std::unique_ptr<MixerState>> NewState(int64_t capacity) override {
    auto state = std::make_unique<MixerState>();
    const int64_t key_bytes = int64_t{shape_.head_dim} * DTypeBytes(dtype_);
    for (int i = 0; i < 2; ++i) {  // keys, values
      NIBBLE_RETURN_IF_ERROR(
          state->AddPerToken(device_.memory(), shape_.kv_heads, capacity, key_bytes));
    }
    return state;
  }

  absl::Status Forward(const StepContext& context, const ConstMatrix& x,
                       const MutableMatrix& y) override {
    const MutableMatrix projected = projected_.rows(x.rows), mixed = mixed_.rows(x.rows);
    NIBBLE_RETURN_IF_ERROR(qkv_.Forward(context, x, projected));
    NIBBLE_RETURN_IF_ERROR(qkv_.AddBias(projected));
    NIBBLE_RETURN_IF_ERROR(Rotate(context, projected, /*inverse=*/false));
    std::vector<KvCache> caches;
    for (const SequenceState* sequence : context.sequences) {
      const MixerState& state = sequence->mixer(block_);
      caches.push_back({state.tensor<void>(0), state.tensor<void>(1), sequence->capacity()});
    }
    NIBBLE_RETURN_IF_ERROR(
        device_.ops.attention().Forward(AttentionForward{.shape = shape_,
                                                         .layout = context.layout,
                                                         .qkv = Const(projected),
                                                         .out = mixed,
                                                         .lse = lse_.data<float>(),
                                                         .caches = caches}));
    NIBBLE_RETURN_IF_ERROR(out_.Forward(context, Const(mixed), y));
    return out_.AddBias(y);
  }

  absl::Status Backward(const StepContext& context, const ConstMatrix& x, const ConstMatrix& dy,
                        const MutableMatrix& dx) override {
    NIBBLE_RETURN_IF_ERROR(out_.Backward(context, mixed_.view(), dy, dmixed_.mut()));
    NIBBLE_RETURN_IF_ERROR(device_.ops.attention().Backward(BackwardOf(context.layout)));
    NIBBLE_RETURN_IF_ERROR(Rotate(context, dprojected_.mut(), /*inverse=*/true));
    return qkv_.Backward(context, x, dprojected_.view(), dx);
  }

 private:
  AttentionBackward BackwardOf(const SequenceLayout& layout) const {
    return {.shape = shape_,
            .layout = layout,
            .qkv = projected_.view(),
            .out = mixed_.view(),
            .dout = dmixed_.view(),
            .lse = lse_.data<float>(),
            .dqkv = dprojected_.mut()};
  }

  absl::Status Rotate(const StepContext& context, const MutableMatrix& qkv, bool inverse) {
    if (!rope_) return absl::OkStatus();
    return device_.ops.attention().Run(Rope{.shape = shape_,
                                            .layout = context.layout,
                                            .qkv = qkv,
                                            .theta = theta_,
                                            .inverse = inverse});
  }

  Device device_;
  int64_t block_;
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
                                                          const ParameterView& parameters,
                                                          int64_t block, DType dtype) {
  NIBBLE_ASSIGN_OR_RETURN(Linear qkv,
                          FindLinear(device, parameters, block, "attention.qkv", dtype));
  NIBBLE_ASSIGN_OR_RETURN(Linear out,
                          FindLinear(device, parameters, block, "attention.out", dtype));
  return std::make_unique<AttentionMixer>(device, parameters.outline().spec, block, std::move(qkv),
                                          std::move(out), dtype);
}

}  // namespace nibble
