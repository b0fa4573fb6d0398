// The table of mixers, and two of them: causal grouped-query attention over a cache (qkv
// projection, rotary positions, keys and values into the cache, attention, output projection), and
// the feed-forward mixer (up-projection, non-linearity, down-projection), which keeps no state.
#include "worker/infer/decode_mixer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cpu/layers/rope_kernels.h"
#include "worker/infer/cached_attention.h"
#include "worker/infer/loaded_weights.h"
#include "worker/trainer/model/region.h"

namespace nibble {
namespace {

struct Entry {
  char symbol;
  absl::StatusOr<std::unique_ptr<DecodeMixer>> (*make)(DecodeDevice&, const LoadedWeights&,
                                                       int64_t);
};

constexpr Entry kMixers[] = {
    {'M', MakeMamba2Decoder},
    {'*', MakeAttentionDecoder},
    {'-', MakeMlpDecoder},
};

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeMixer>> MakeDecodeMixer(DecodeDevice& device,
                                                             const LoadedWeights& weights,
                                                             int64_t block) {
  const char symbol = weights.outline().spec.pattern[static_cast<size_t>(block)];
  for (const Entry& entry : kMixers) {
    if (entry.symbol == symbol) return entry.make(device, weights, block);
  }
  return absl::InternalError(
      absl::StrCat("block ", block, ": no decoder for '", std::string(1, symbol), "'"));
}

namespace {

// From this number of tokens of a sequence on, the matrix units win although the cache is packed
// first.
constexpr int64_t kStripRows = 5;
// Tokens per task that rotates and caches.
constexpr int64_t kRowBlock = 16;
// The table of rotations grows by this number of positions, so that a token rarely waits for it.
constexpr int64_t kRopeGrowth = 512;

AttentionShape ShapeOf(const ModelSpec& spec) {
  return {.heads = static_cast<int>(spec.heads),
          .kv_heads = static_cast<int>(spec.kv_heads),
          .head_dim = static_cast<int>(spec.head_dim),
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)))};
}

template <class T>
class AttentionDecoder : public DecodeMixer {
 public:
  AttentionDecoder(DecodeDevice& device, const LoadedWeights& weights, int64_t block,
                   DecodeLinear qkv, DecodeLinear out)
      : device_(device),
        shape_(ShapeOf(weights.outline().spec)),
        rope_(weights.outline().spec.positions == Positions::kRope),
        theta_(weights.outline().spec.rope_theta),
        block_(block),
        dtype_(weights.precision()),
        qkv_(std::move(qkv)),
        out_(std::move(out)),
        single_(device.pool, device.isa, shape_),
        strips_(device.pool, shape_, device.attention) {}

  absl::StatusOr<std::unique_ptr<LayerState>> NewState(int64_t capacity) override {
    absl::StatusOr<std::unique_ptr<KvCache<T>>> cache =
        KvCache<T>::Create(device_.memory, shape_.kv_heads, capacity, shape_.head_dim);
    if (!cache.ok()) return cache.status();
    return *std::move(cache);
  }

  absl::Status Allocate(int64_t rows, Memory& scratch) override {
    absl::Status status = projected_.Allocate(scratch, dtype_, rows, shape_.qkv_cols());
    if (status.ok()) status = mixed_.Allocate(scratch, dtype_, rows, shape_.out_cols());
    return status;
  }

  absl::Status Forward(absl::Span<const RowPiece> pieces, const ConstMatrix& x,
                       const MutableMatrix& y) override {
    NIBBLE_RETURN_IF_ERROR(qkv_.Forward(x, Rows(projected_.mut(), 0, x.rows)));
    RotateAndCache(pieces);
    few_.clear();
    for (const RowPiece& piece : pieces) {
      if (piece.rows < kStripRows) few_.push_back(PieceOf(piece));
    }
    single_.Run(few_);
    for (const RowPiece& piece : pieces) {
      if (piece.rows >= kStripRows) strips_.Run(PieceOf(piece));
    }
    return out_.Forward(Rows(mixed_.view(), 0, x.rows), y);
  }

 private:
  KvCache<T>& CacheOf(const RowPiece& piece) const {
    return static_cast<KvCache<T>&>(*piece.sequence->layer(block_));
  }
  T* Row(const ActivationBuffer& buffer, int64_t row) const {
    return static_cast<T*>(buffer.mut().data) + row * buffer.mut().stride;
  }

  AttentionPiece<T> PieceOf(const RowPiece& piece) const {
    const KvCache<T>& cache = CacheOf(piece);
    return {.rows = piece.rows,
            .position = piece.position,
            .q = Row(projected_, piece.row),
            .q_stride = shape_.qkv_cols(),
            .keys = cache.keys(),
            .values = cache.values(),
            .head_stride = cache.head_stride(),
            .out = Row(mixed_, piece.row),
            .out_stride = shape_.out_cols()};
  }

  void RotateAndCache(absl::Span<const RowPiece> pieces) {
    tasks_.clear();
    int64_t positions = 0;
    for (const RowPiece& piece : pieces) {
      for (int64_t begin = 0; begin < piece.rows; begin += kRowBlock) {
        tasks_.push_back({piece.sequence, piece.row + begin,
                          std::min(kRowBlock, piece.rows - begin), piece.position + begin});
      }
      positions = std::max(positions, piece.position + piece.rows);
    }
    cpu::RopeTable::Angles angles = {};
    if (rope_) {
      angles = device_.rope.At(shape_.head_dim / 2, theta_,
                               (positions + kRopeGrowth - 1) / kRopeGrowth * kRopeGrowth);
    }
    device_.pool.ParallelFor(static_cast<int64_t>(tasks_.size()), [&](int64_t i, int) {
      const RowPiece& rows = tasks_[static_cast<size_t>(i)];
      if (rope_) Rotate(rows, angles);
      Cache(rows);
    });
  }

  void Rotate(const RowPiece& rows, const cpu::RopeTable::Angles& angles) const {
    const cpu::RopeRows<T> request = {.x = Row(projected_, rows.row),
                                      .stride = shape_.qkv_cols(),
                                      .rows = rows.rows,
                                      .first_row = rows.position,
                                      .doc_begin = nullptr,
                                      .heads = shape_.heads + shape_.kv_heads,
                                      .half = shape_.head_dim / 2,
                                      .cosines = angles.cosines,
                                      .sines = angles.sines,
                                      .inverse = false};
    const cpu::RopeKernels& kernels = cpu::RopeKernelsFor(device_.isa);
    if constexpr (sizeof(T) == 2) {
      kernels.bf16(request);
    } else {
      kernels.fp32(request);
    }
  }

  void Cache(const RowPiece& rows) const {
    const KvCache<T>& cache = CacheOf(rows);
    const int64_t dim = shape_.head_dim;
    const size_t bytes = static_cast<size_t>(dim) * sizeof(T);
    for (int64_t r = 0; r < rows.rows; ++r) {
      const T* k = Row(projected_, rows.row + r) + shape_.out_cols();
      for (int64_t h = 0; h < shape_.kv_heads; ++h) {
        const int64_t at = h * cache.head_stride() + (rows.position + r) * dim;
        std::memcpy(cache.keys() + at, k + h * dim, bytes);
        std::memcpy(cache.values() + at, k + (shape_.kv_heads + h) * dim, bytes);
      }
    }
  }

  DecodeDevice& device_;
  const AttentionShape shape_;
  const bool rope_;
  const double theta_;
  const int64_t block_;
  const DType dtype_;
  DecodeLinear qkv_, out_;
  SingleQueryAttention<T> single_;
  StripAttention<T> strips_;
  ActivationBuffer projected_;  // [rows, qkv_cols], rotated
  ActivationBuffer mixed_;      // [rows, heads·head_dim]
  std::vector<RowPiece> tasks_;
  std::vector<AttentionPiece<T>> few_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeMixer>> MakeAttentionDecoder(DecodeDevice& device,
                                                                  const LoadedWeights& weights,
                                                                  int64_t block) {
  NIBBLE_ASSIGN_OR_RETURN(DecodeLinear qkv,
                          DecodeLinear::Find(device, weights, block, "attention.qkv"));
  NIBBLE_ASSIGN_OR_RETURN(DecodeLinear out,
                          DecodeLinear::Find(device, weights, block, "attention.out"));
  if (weights.precision() == DType::kBf16) {
    return std::make_unique<AttentionDecoder<uint16_t>>(device, weights, block, std::move(qkv),
                                                        std::move(out));
  }
  return std::make_unique<AttentionDecoder<float>>(device, weights, block, std::move(qkv),
                                                   std::move(out));
}

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
  NIBBLE_ASSIGN_OR_RETURN(DecodeLinear up, DecodeLinear::Find(device, weights, block, "mlp.up"));
  NIBBLE_ASSIGN_OR_RETURN(DecodeLinear down,
                          DecodeLinear::Find(device, weights, block, "mlp.down"));
  return std::make_unique<MlpDecoder>(device, weights, std::move(up), std::move(down));
}

}  // namespace nibble
