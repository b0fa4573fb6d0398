// The feed-forward mixer: up-projection, non-linearity, down-projection. Keeps nothing.
#include <utility>

#include "worker/infer/decode_mixer.h"
#include "worker/infer/matrix_product.h"
#include "worker/trainer/model/tensors.h"

namespace nibble {
namespace {

class MlpDecoder : public DecodeMixer {
 public:
  MlpDecoder(DecodeDevice& device, const LoadedWeights& weights, DecodeLinear up, DecodeLinear down)
      : device_(device),
        activation_(weights.outline().spec.activation),
        dtype_(weights.precision()),
        up_(std::move(up)),
        down_(std::move(down)) {}

  absl::StatusOr<std::unique_ptr<LayerState>> NewState(int64_t) override { return nullptr; }

  absl::Status Allocate(int64_t rows, Memory& scratch) override {
    absl::Status status = wide_.Allocate(scratch, dtype_, rows, up_.out());
    if (status.ok()) status = active_.Allocate(scratch, dtype_, rows, down_.in());
    return status;
  }

  absl::Status Forward(absl::Span<const RowPiece>, const ConstMatrix& x,
                       const MutableMatrix& y) override {
    const MutableMatrix wide = Rows(wide_.mut(), 0, x.rows);
    const MutableMatrix active = Rows(active_.mut(), 0, x.rows);
    absl::Status status = up_.ForwardWithoutBias(x, wide);
    if (status.ok()) {
      status = device_.ops.elementwise().Forward(ActivationForward{
          .kind = activation_, .bias = up_.bias(), .in = Const(wide), .out = active});
    }
    if (status.ok()) status = down_.Forward(Const(active), y);
    return status;
  }

 private:
  DecodeDevice& device_;
  Activation activation_;
  DType dtype_;
  DecodeLinear up_, down_;
  ActivationBuffer wide_;    // [rows, d_ff], of SwiGLU 2·d_ff; without the bias
  ActivationBuffer active_;  // [rows, d_ff]
};

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeMixer>> MakeMlpDecoder(DecodeDevice& device,
                                                            const LoadedWeights& weights,
                                                            int64_t block) {
  absl::StatusOr<DecodeLinear> up = DecodeLinear::Find(device, weights, block, "mlp.up");
  if (!up.ok()) return up.status();
  absl::StatusOr<DecodeLinear> down = DecodeLinear::Find(device, weights, block, "mlp.down");
  if (!down.ok()) return down.status();
  return std::make_unique<MlpDecoder>(device, weights, *std::move(up), *std::move(down));
}

}  // namespace nibble
