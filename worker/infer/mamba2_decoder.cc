// The Mamba-2 mixer, token by token: in_proj to z | xBC | dt, convolution and SiLU over xBC, the
// state's recurrence, gated norm, out_proj. Keeps the convolution's window and the state in FP32.
#include "worker/infer/mamba2_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/subnormals_scope.h"
#include "kernels/formats/bfloat16.h"
#include "worker/infer/decode_mixer.h"
#include "worker/infer/kernels/recurrence_kernels.h"
#include "worker/infer/loaded_weights.h"
#include "worker/trainer/model/region.h"

namespace nibble {
namespace {

// Channels per task of the convolution.
constexpr int64_t kChannelBlock = 512;

struct Mamba2Weights {
  const float *conv, *conv_bias, *dt_bias, *a_log, *d, *norm;
};

double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

class Mamba2Decoder : public DecodeMixer {
 public:
  Mamba2Decoder(DecodeDevice& device, const LoadedWeights& loaded, int64_t block,
                const Mamba2Weights& weights, DecodeLinear in, DecodeLinear out)
      : device_(device),
        spec_(loaded.outline().spec),
        block_(block),
        weights_(weights),
        dtype_(loaded.precision()),
        in_(std::move(in)),
        out_(std::move(out)),
        rooms_(static_cast<size_t>(device.pool.threads())) {
    const int64_t channels = spec_.conv_dim(), width = spec_.conv_width;
    taps_.resize(static_cast<size_t>(width * channels));
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t w = 0; w < width; ++w) taps_[w * channels + c] = weights.conv[c * width + w];
    }
    for (int64_t h = 0; h < spec_.mamba_heads; ++h) {
      rate_.push_back(-std::exp(static_cast<double>(weights.a_log[h])));
    }
  }

  absl::StatusOr<std::unique_ptr<LayerState>> NewState(int64_t) override {
    return std::make_unique<Mamba2State>(spec_);
  }

  absl::Status Allocate(int64_t rows, Memory& scratch) override {
    absl::Status status = projected_.Allocate(scratch, dtype_, rows, in_.out());
    if (status.ok()) status = xbc_.Allocate(scratch, dtype_, rows, spec_.conv_dim());
    if (status.ok()) status = scanned_.Allocate(scratch, dtype_, rows, spec_.d_inner());
    if (status.ok()) status = gated_.Allocate(scratch, dtype_, rows, spec_.d_inner());
    if (status.ok()) status = AllocateFloats(scratch, rows * spec_.mamba_groups, rstd_);
    for (Room& room : rooms_) {
      room.delta.resize(static_cast<size_t>(rows));
      room.decay.resize(static_cast<size_t>(rows));
      room.bc.resize(static_cast<size_t>(2 * spec_.mamba_state));
    }
    return status;
  }

  absl::Status Forward(absl::Span<const RowPiece> pieces, const ConstMatrix& x,
                       const MutableMatrix& y) override {
    const MutableMatrix projected = Rows(projected_.mut(), 0, x.rows);
    const MutableMatrix scanned = Rows(scanned_.mut(), 0, x.rows);
    const MutableMatrix gated = Rows(gated_.mut(), 0, x.rows);
    absl::Status status = in_.Forward(x, projected);
    if (!status.ok()) return status;
    if (dtype_ == DType::kBf16) {
      Recur<uint16_t>(pieces);
    } else {
      Recur<float>(pieces);
    }
    status = device_.ops.norm().Forward(
        GatedNormForward{.groups = static_cast<int>(spec_.mamba_groups),
                         .eps = static_cast<float>(spec_.norm_eps),
                         .weight = weights_.norm,
                         .y = Const(scanned),
                         .z = Columns(Const(projected), 0, spec_.d_inner()),
                         .out = gated,
                         .rstd = rstd_.data<float>()});
    if (status.ok()) status = out_.Forward(Const(gated), y);
    return status;
  }

 private:
  struct Room {
    std::vector<float> delta, decay;  // [rows]
    std::vector<float> bc;            // [2 · state]
  };

  template <class T>
  void Recur(absl::Span<const RowPiece> pieces) {
    const cpu::RecurrenceOf<T>& kernels = cpu::RecurrenceKernelsFor(device_.isa).of<T>();
    const cpu::Blocks channels = {spec_.conv_dim(), kChannelBlock};
    device_.pool.ParallelFor(
        static_cast<int64_t>(pieces.size()) * channels.count(), [&](int64_t task, int) {
          const RowPiece& piece = pieces[static_cast<size_t>(task / channels.count())];
          const int64_t c = channels.begin(task % channels.count());
          kernels.conv({.tokens = piece.rows,
                        .channels = channels.end(task % channels.count()) - c,
                        .width = static_cast<int>(spec_.conv_width),
                        .taps = taps_.data() + c,
                        .bias = weights_.conv_bias + c,
                        .window = StateOf(piece).window() + c,
                        .param_stride = spec_.conv_dim(),
                        .in = At<T>(projected_, piece.row, spec_.d_inner() + c),
                        .in_stride = in_.out(),
                        .out = At<T>(xbc_, piece.row, c),
                        .out_stride = spec_.conv_dim()});
        });
    const int64_t heads = spec_.mamba_heads;
    device_.pool.ParallelFor(static_cast<int64_t>(pieces.size()) * heads,
                             [&](int64_t task, int thread) {
                               const cpu::SubnormalsAreZero no_subnormals;
                               Head<T>(pieces[static_cast<size_t>(task / heads)], task % heads,
                                       rooms_[static_cast<size_t>(thread)], kernels);
                             });
  }

  template <class T>
  void Head(const RowPiece& piece, int64_t head, Room& room, const cpu::RecurrenceOf<T>& kernels) {
    const int64_t dim = spec_.mamba_head_dim, state = spec_.mamba_state;
    const int64_t group = head / (spec_.mamba_heads / spec_.mamba_groups);
    const int64_t b = spec_.d_inner() + group * state;
    const int64_t dt = spec_.d_inner() + spec_.conv_dim() + head;
    for (int64_t t = 0; t < piece.rows; ++t) {
      const double raw = Widened(*At<T>(projected_, piece.row + t, dt));
      const double delta = Softplus(raw + weights_.dt_bias[head]);
      room.delta[t] = static_cast<float>(delta);
      room.decay[t] = static_cast<float>(std::exp(delta * rate_[head]));
    }
    kernels.scan({.tokens = piece.rows,
                  .head_dim = static_cast<int>(dim),
                  .state = static_cast<int>(state),
                  .delta = room.delta.data(),
                  .decay = room.decay.data(),
                  .d = weights_.d[head],
                  .x = At<T>(xbc_, piece.row, head * dim),
                  .b = At<T>(xbc_, piece.row, b),
                  .c = At<T>(xbc_, piece.row, b + spec_.mamba_groups * state),
                  .stride = spec_.conv_dim(),
                  .y = At<T>(scanned_, piece.row, head * dim),
                  .y_stride = spec_.d_inner(),
                  .s = StateOf(piece).state() + head * dim * state,
                  .room = room.bc.data()});
  }

  static double Widened(float x) { return x; }
  static double Widened(uint16_t x) { return DecodeBf16(x); }

  template <class T>
  static T* At(const ActivationBuffer& buffer, int64_t row, int64_t col) {
    return static_cast<T*>(buffer.mut().data) + row * buffer.mut().stride + col;
  }
  Mamba2State& StateOf(const RowPiece& piece) const {
    return static_cast<Mamba2State&>(*piece.sequence->layer(block_));
  }

  DecodeDevice& device_;
  const ModelSpec spec_;
  const int64_t block_;
  const Mamba2Weights weights_;
  const DType dtype_;
  DecodeLinear in_, out_;
  std::vector<float> taps_;     // [width, conv_dim]
  std::vector<double> rate_;    // [heads] A
  ActivationBuffer projected_;  // [rows, d_inner + conv_dim + heads]
  ActivationBuffer xbc_;        // [rows, conv_dim], after convolution and SiLU
  ActivationBuffer scanned_;    // [rows, d_inner]
  ActivationBuffer gated_;      // [rows, d_inner]
  Buffer rstd_;                 // [rows, groups]
  std::vector<Room> rooms_;     // one for each thread
};

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeMixer>> MakeMamba2Decoder(DecodeDevice& device,
                                                               const LoadedWeights& weights,
                                                               int64_t block) {
  Mamba2Weights found;
  const std::pair<const char*, const float**> named[] = {
      {"conv.weight", &found.conv},
      {"conv.bias", &found.conv_bias},
      {"dt_bias", &found.dt_bias},
      {"A_log", &found.a_log},
      {"D", &found.d},
      {"norm.weight", &found.norm},
  };
  for (const auto& [name, to] : named) {
    NIBBLE_ASSIGN_OR_RETURN(const float* const vector,
                            weights.FindVector(absl::StrCat("blocks.", block, ".mamba.", name)));
    *to = vector;
  }
  NIBBLE_ASSIGN_OR_RETURN(DecodeLinear in,
                          DecodeLinear::Find(device, weights, block, "mamba.in_proj"));
  NIBBLE_ASSIGN_OR_RETURN(DecodeLinear out,
                          DecodeLinear::Find(device, weights, block, "mamba.out_proj"));
  return std::make_unique<Mamba2Decoder>(device, weights, block, found, std::move(in),
                                         std::move(out));
}

}  // namespace nibble
