// Mamba-2: in_proj to z | xBC | dt, convolution and SiLU over xBC, scan, gated norm, out_proj. A
// sequence keeps the convolution's window and the recurrent state, both FP32.
#include <algorithm>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "worker/trainer/model/mixer.h"
#include "worker/trainer/model/region.h"

namespace nibble {
namespace {

// A parameter's values and gradient.
struct Weights {
  float* value = nullptr;
  float* gradient = nullptr;
};

struct Mamba2Weights {
  Weights conv, conv_bias, dt_bias, a_log, d, norm;
};

class Mamba2Mixer : public Mixer {
 public:
  Mamba2Mixer(const Device& device, const ModelSpec& spec, int64_t block,
              const Mamba2Weights& weights, Linear in_proj, Linear out_proj, DType dtype)
      : device_(device),
        block_(block),
        shape_({.heads = static_cast<int>(spec.mamba_heads),
                .head_dim = static_cast<int>(spec.mamba_head_dim),
                .groups = static_cast<int>(spec.mamba_groups),
                .state = static_cast<int>(spec.mamba_state),
                .chunk = static_cast<int>(spec.chunk)}),
        conv_width_(static_cast<int>(spec.conv_width)),
        eps_(static_cast<float>(spec.norm_eps)),
        weights_(weights),
        dtype_(dtype),
        in_(std::move(in_proj)),
        out_(std::move(out_proj)) {}

  std::vector<Linear*> linears() override { return {&in_, &out_}; }
  bool keeps_input() const override { return in_.keeps_input(); }

  absl::Status AllocateForward(int64_t tokens, const Places& places) override {
    const int64_t inner = shape_.d_inner();
    Region& saved = places.saved;
    absl::Status status = in_.Allocate(tokens, places);
    if (status.ok()) status = out_.Allocate(tokens, places);
    if (status.ok()) status = projected_.Allocate(saved, dtype_, tokens, in_.info().out);
    if (status.ok()) status = xbc_.Allocate(saved, dtype_, tokens, shape_.xbc_cols());
    if (status.ok()) status = scanned_.Allocate(saved, dtype_, tokens, inner);
    if (status.ok()) status = AllocateFloats(saved, tokens * shape_.groups, rstd_);
    Region& gated_place = out_.keeps_input() ? saved : places.scratch;
    if (status.ok()) status = gated_.Allocate(gated_place, dtype_, tokens, inner);
    return status;
  }
  absl::Status AllocateBackward(int64_t tokens, const Places& places) override {
    const int64_t inner = shape_.d_inner();
    Region& scratch = places.scratch;
    NIBBLE_RETURN_IF_ERROR(dprojected_.Allocate(scratch, dtype_, tokens, in_.info().out));
    NIBBLE_RETURN_IF_ERROR(dxbc_.Allocate(scratch, dtype_, tokens, shape_.xbc_cols()));
    NIBBLE_RETURN_IF_ERROR(dscanned_.Allocate(scratch, dtype_, tokens, inner));
    return dgated_.Allocate(scratch, dtype_, tokens, inner);
  }

  OperationScratch BackwardScratch(const SequenceLayout& layout) const override {
    const MambaOps& mamba = device_.ops.mamba();
    return {.norm = device_.ops.norm().ScratchBytes(NormBackwardOf()),
            .mamba = std::max(mamba.ScratchBytes(ScanBackwardOf(layout)),
                              mamba.ScratchBytes(ConvBackwardOf(layout)))};
  }

  absl::StatusOr<std::unique_ptr<MixerState>> NewState(int64_t) override {
    auto state = std::make_unique<MixerState>();
    const int64_t window = (conv_width_ - 1) * shape_.xbc_cols();
    for (const int64_t elements : {window, shape_.d_inner() * shape_.state}) {
      NIBBLE_RETURN_IF_ERROR(
          state->AddFixed(device_.memory(), elements * static_cast<int64_t>(sizeof(float))));
    }
    return state;
  }

  absl::Status Forward(const StepContext& context, const ConstMatrix& x,
                       const MutableMatrix& y) override {
    const MutableMatrix projected = projected_.rows(x.rows), xbc = xbc_.rows(x.rows);
    const MutableMatrix scanned = scanned_.rows(x.rows), gated = gated_.rows(x.rows);
    NIBBLE_RETURN_IF_ERROR(in_.Forward(context, x, projected));
    NIBBLE_RETURN_IF_ERROR(in_.AddBias(projected));
    std::vector<float*> windows, states;
    for (const SequenceState* sequence : context.sequences) {
      windows.push_back(sequence->mixer(block_).tensor<float>(0));
      states.push_back(sequence->mixer(block_).tensor<float>(1));
    }
    NIBBLE_RETURN_IF_ERROR(device_.ops.mamba().Forward(ConvForward{.layout = context.layout,
                                                                   .width = conv_width_,
                                                                   .weight = weights_.conv.value,
                                                                   .bias = weights_.conv_bias.value,
                                                                   .in = Const(Xbc(projected)),
                                                                   .out = xbc,
                                                                   .windows = windows}));
    NIBBLE_RETURN_IF_ERROR(device_.ops.mamba().Forward(ScanForward{.shape = shape_,
                                                                   .params = ScanWeights(),
                                                                   .layout = context.layout,
                                                                   .xbc = Const(xbc),
                                                                   .dt = Const(Dt(projected)),
                                                                   .y = scanned,
                                                                   .states = states}));
    NIBBLE_RETURN_IF_ERROR(
        device_.ops.norm().Forward(GatedNormForward{.groups = shape_.groups,
                                                    .eps = eps_,
                                                    .weight = weights_.norm.value,
                                                    .y = Const(scanned),
                                                    .z = Const(Z(projected)),
                                                    .out = gated,
                                                    .rstd = rstd_.data<float>()}));
    NIBBLE_RETURN_IF_ERROR(out_.Forward(context, Const(gated), y));
    return out_.AddBias(y);
  }

  absl::Status Backward(const StepContext& context, const ConstMatrix& x, const ConstMatrix& dy,
                        const MutableMatrix& dx) override {
    NIBBLE_RETURN_IF_ERROR(out_.Backward(context, gated_.view(), dy, dgated_.mut()));
    const SequenceLayout& layout = context.layout;
    NIBBLE_RETURN_IF_ERROR(device_.ops.norm().Backward(NormBackwardOf()));
    NIBBLE_RETURN_IF_ERROR(device_.ops.mamba().Backward(ScanBackwardOf(layout)));
    NIBBLE_RETURN_IF_ERROR(device_.ops.mamba().Backward(ConvBackwardOf(layout)));
    return in_.Backward(context, x, dprojected_.view(), dx);
  }

 private:
  // The parts of a projection [tokens, z | xBC | dt].
  template <class Matrix>
  Matrix Z(const Matrix& m) const {
    return Columns(m, 0, shape_.d_inner());
  }
  template <class Matrix>
  Matrix Xbc(const Matrix& m) const {
    return Columns(m, shape_.d_inner(), shape_.xbc_cols());
  }
  template <class Matrix>
  Matrix Dt(const Matrix& m) const {
    return Columns(m, shape_.d_inner() + shape_.xbc_cols(), shape_.heads);
  }

  GatedNormBackward NormBackwardOf() const {
    return {.groups = shape_.groups,
            .weight = weights_.norm.value,
            .y = scanned_.view(),
            .z = Z(projected_.view()),
            .dout = dgated_.view(),
            .rstd = rstd_.data<float>(),
            .dy = dscanned_.mut(),
            .dz = Z(dprojected_.mut()),
            .dweight = weights_.norm.gradient};
  }
  ScanBackward ScanBackwardOf(const SequenceLayout& layout) const {
    return {.shape = shape_,
            .params = ScanWeights(),
            .layout = layout,
            .xbc = xbc_.view(),
            .dt = Dt(projected_.view()),
            .dy = dscanned_.view(),
            .dxbc = dxbc_.mut(),
            .ddt = Dt(dprojected_.mut()),
            .ddt_bias = weights_.dt_bias.gradient,
            .da_log = weights_.a_log.gradient,
            .dd = weights_.d.gradient};
  }
  ConvBackward ConvBackwardOf(const SequenceLayout& layout) const {
    return {.layout = layout,
            .width = conv_width_,
            .weight = weights_.conv.value,
            .bias = weights_.conv_bias.value,
            .in = Xbc(projected_.view()),
            .dout = dxbc_.view(),
            .din = Xbc(dprojected_.mut()),
            .dweight = weights_.conv.gradient,
            .dbias = weights_.conv_bias.gradient};
  }

  ScanParams ScanWeights() const {
    return {
        .dt_bias = weights_.dt_bias.value, .a_log = weights_.a_log.value, .d = weights_.d.value};
  }

  Device device_;
  int64_t block_;
  ScanShape shape_;
  int conv_width_;
  float eps_;
  Mamba2Weights weights_;
  DType dtype_;
  Linear in_, out_;
  ActivationBuffer projected_;  // [tokens, d_inner + conv_dim + heads]
  ActivationBuffer xbc_;        // [tokens, conv_dim], after convolution and SiLU
  ActivationBuffer scanned_;    // [tokens, d_inner]
  ActivationBuffer gated_;      // [tokens, d_inner]
  Buffer rstd_;                 // [tokens, groups]
  ActivationBuffer dprojected_, dxbc_, dscanned_, dgated_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> MakeMamba2Mixer(const Device& device,
                                                       const ParameterView& parameters,
                                                       int64_t block, DType dtype) {
  Mamba2Weights weights;
  const std::pair<const char*, Weights*> named[] = {
      {"mamba.conv.weight", &weights.conv},
      {"mamba.conv.bias", &weights.conv_bias},
      {"mamba.dt_bias", &weights.dt_bias},
      {"mamba.A_log", &weights.a_log},
      {"mamba.D", &weights.d},
      {"mamba.norm.weight", &weights.norm},
  };
  for (const auto& [name, weight] : named) {
    NIBBLE_ASSIGN_OR_RETURN(const int64_t param, FindBlockParam(parameters.outline(), block, name));
    *weight = {parameters.weight(param), parameters.gradient(param)};
  }
  NIBBLE_ASSIGN_OR_RETURN(Linear in, FindLinear(device, parameters, block, "mamba.in_proj", dtype));
  NIBBLE_ASSIGN_OR_RETURN(Linear out,
                          FindLinear(device, parameters, block, "mamba.out_proj", dtype));
  return std::make_unique<Mamba2Mixer>(device, parameters.outline().spec, block, weights,
                                       std::move(in), std::move(out), dtype);
}

}  // namespace nibble
