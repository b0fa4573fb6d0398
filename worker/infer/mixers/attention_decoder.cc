// Causal grouped-query attention over a cache: qkv projection, rotary positions, keys and values
// into the cache, attention, output projection.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/rope_kernels.h"
#include "worker/infer/decode_mixer.h"
#include "worker/infer/kv_cache.h"
#include "worker/infer/matrix_product.h"
#include "worker/infer/single_query_attention.h"
#include "worker/infer/strip_attention.h"
#include "worker/trainer/model/tensors.h"

namespace nibble {
namespace {

// From so many tokens of a sequence on, the matrix units win although the cache is packed first.
constexpr int64_t kStripRows = 5;
// Tokens of a task that rotates and caches.
constexpr int64_t kRowBlock = 16;
// The table of rotations grows by so many positions, so that a token rarely waits for it.
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
    absl::Status status = qkv_.Forward(x, Rows(projected_.mut(), 0, x.rows));
    if (!status.ok()) return status;
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
  absl::StatusOr<DecodeLinear> qkv = DecodeLinear::Find(device, weights, block, "attention.qkv");
  if (!qkv.ok()) return qkv.status();
  absl::StatusOr<DecodeLinear> out = DecodeLinear::Find(device, weights, block, "attention.out");
  if (!out.ok()) return out.status();
  if (weights.precision() == DType::kBf16) {
    return std::make_unique<AttentionDecoder<uint16_t>>(device, weights, block, *std::move(qkv),
                                                        *std::move(out));
  }
  return std::make_unique<AttentionDecoder<float>>(device, weights, block, *std::move(qkv),
                                                   *std::move(out));
}

}  // namespace nibble
