// The feed-forward mixer: up-projection, non-linearity, down-projection.
#include <utility>

#include "common/status_macros.h"
#include "worker/trainer/model/mixer.h"
#include "worker/trainer/model/region.h"

namespace nibble {
namespace {

class MlpMixer : public Mixer {
 public:
  MlpMixer(const Device& device, const ModelSpec& spec, Linear up, Linear down, DType dtype)
      : device_(device),
        activation_(spec.activation),
        dtype_(dtype),
        up_(std::move(up)),
        down_(std::move(down)) {}

  std::vector<Linear*> linears() override { return {&up_, &down_}; }
  bool keeps_input() const override { return up_.keeps_input(); }

  absl::Status AllocateForward(int64_t tokens, const Places& places) override {
    absl::Status status = up_.Allocate(tokens, places);
    if (status.ok()) status = down_.Allocate(tokens, places);
    if (status.ok()) status = wide_.Allocate(places.saved, dtype_, tokens, up_.info().out);
    Region& active_place = down_.keeps_input() ? places.saved : places.scratch;
    if (status.ok()) status = active_.Allocate(active_place, dtype_, tokens, down_.info().in);
    return status;
  }
  absl::Status AllocateBackward(int64_t tokens, const Places& places) override {
    NIBBLE_RETURN_IF_ERROR(dwide_.Allocate(places.scratch, dtype_, tokens, up_.info().out));
    return dactive_.Allocate(places.scratch, dtype_, tokens, down_.info().in);
  }
  OperationScratch BackwardScratch(const SequenceLayout&) const override { return {}; }

  absl::StatusOr<std::unique_ptr<MixerState>> NewState(int64_t) override { return nullptr; }

  absl::Status Forward(const StepContext& context, const ConstMatrix& x,
                       const MutableMatrix& y) override {
    const MutableMatrix wide = wide_.rows(x.rows), active = active_.rows(x.rows);
    NIBBLE_RETURN_IF_ERROR(up_.Forward(context, x, wide));
    if (activation_ == Activation::kSquaredRelu && up_.bias() == nullptr &&
        down_.quantizes_squared_relu()) {
      NIBBLE_RETURN_IF_ERROR(down_.Forward(context, Const(wide), y, /*squared_relu=*/true));
      return down_.AddBias(y);
    }
    NIBBLE_RETURN_IF_ERROR(device_.ops.elementwise().Forward(ActivationForward{
        .kind = activation_, .bias = up_.bias(), .in = Const(wide), .out = active}));
    NIBBLE_RETURN_IF_ERROR(down_.Forward(context, Const(active), y));
    return down_.AddBias(y);
  }

  absl::Status Backward(const StepContext& context, const ConstMatrix& x, const ConstMatrix& dy,
                        const MutableMatrix& dx) override {
    NIBBLE_RETURN_IF_ERROR(down_.Backward(context, active_.view(), dy, dactive_.mut()));
    NIBBLE_RETURN_IF_ERROR(
        device_.ops.elementwise().Backward(ActivationBackward{.kind = activation_,
                                                              .bias = up_.bias(),
                                                              .in = wide_.view(),
                                                              .dout = dactive_.view(),
                                                              .din = dwide_.mut()}));
    return up_.Backward(context, x, dwide_.view(), dx);
  }

 private:
  Device device_;
  Activation activation_;
  DType dtype_;
  Linear up_, down_;
  ActivationBuffer wide_;    // [tokens, d_ff], of SwiGLU 2·d_ff; without the bias
  ActivationBuffer active_;  // [tokens, d_ff]
  ActivationBuffer dwide_, dactive_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> MakeMlpMixer(const Device& device,
                                                    const ParameterView& parameters, int64_t block,
                                                    DType dtype) {
  NIBBLE_ASSIGN_OR_RETURN(Linear up, FindLinear(device, parameters, block, "mlp.up", dtype));
  NIBBLE_ASSIGN_OR_RETURN(Linear down, FindLinear(device, parameters, block, "mlp.down", dtype));
  return std::make_unique<MlpMixer>(device, parameters.outline().spec, std::move(up),
                                    std::move(down), dtype);
}

}  // namespace nibble
