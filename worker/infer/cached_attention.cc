#include "worker/infer/cached_attention.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/layers/attention_plan.h"

namespace nibble {

template <class T>
void SingleQueryAttention<T>::Run(absl::Span<const AttentionPiece<T>> pieces) {
  queries_.clear();
  int64_t tasks = 0;
  bool split = false;
  for (const AttentionPiece<T>& piece : pieces) {
    for (int64_t row = 0; row < piece.rows; ++row) {
      const int64_t keys = piece.position + row + 1;
      const int64_t blocks = (keys + cpu::kDecodeKeys - 1) / cpu::kDecodeKeys;
      queries_.push_back({&piece, row, keys, blocks, tasks});
      tasks += blocks * shape_.kv_heads;
      split = split || blocks > 1;
    }
  }
  room_at_ = rooms_.Get(pool_.threads() * cpu::DecodeRoom(group(), shape_.head_dim));
  top_at_ = tops_.Get(tasks * group());
  sum_at_ = sums_.Get(tasks * group());
  out_at_ = outs_.Get(tasks * group() * shape_.head_dim);
  pool_.ParallelFor(tasks, [&](int64_t task, int thread) {
    const auto after = std::upper_bound(queries_.begin(), queries_.end(), task,
                                        [](int64_t t, const Query& q) { return t < q.first; });
    const Query& query = *(after - 1);
    RunBlock(query, task, thread);
    if (query.blocks == 1) Finish(query, task - query.first);
  });
  if (!split) return;
  pool_.ParallelFor(static_cast<int64_t>(queries_.size()) * shape_.kv_heads, [&](int64_t i, int) {
    const Query& query = queries_[static_cast<size_t>(i / shape_.kv_heads)];
    if (query.blocks > 1) Finish(query, i % shape_.kv_heads);
  });
}

// Tasks of a query: kv_heads × blocks, kv_heads outermost.
template <class T>
void SingleQueryAttention<T>::RunBlock(const Query& query, int64_t task, int thread) {
  const int64_t kv_head = (task - query.first) / query.blocks;
  const int64_t begin = (task - query.first) % query.blocks * cpu::kDecodeKeys;
  const AttentionPiece<T>& piece = *query.piece;
  const int64_t at = kv_head * piece.head_stride + begin * shape_.head_dim;
  kernels_.block({.heads = static_cast<int>(group()),
                  .head_dim = shape_.head_dim,
                  .keys = std::min(cpu::kDecodeKeys, query.keys - begin),
                  .scale = shape_.scale,
                  .q = piece.q + query.row * piece.q_stride + kv_head * group() * shape_.head_dim,
                  .k = piece.keys + at,
                  .v = piece.values + at,
                  .room = room_at_ + thread * cpu::DecodeRoom(group(), shape_.head_dim),
                  .top = top_at_ + task * group(),
                  .sum = sum_at_ + task * group(),
                  .out = out_at_ + task * group() * shape_.head_dim});
}

template <class T>
void SingleQueryAttention<T>::Finish(const Query& query, int64_t kv_head) {
  const int64_t task = query.first + kv_head * query.blocks;
  for (int64_t member = 0; member < group(); ++member) {
    const int64_t column = (kv_head * group() + member) * shape_.head_dim;
    kernels_.finish({.blocks = query.blocks,
                     .head_dim = shape_.head_dim,
                     .top = top_at_ + task * group() + member,
                     .sum = sum_at_ + task * group() + member,
                     .top_stride = group(),
                     .out = out_at_ + (task * group() + member) * shape_.head_dim,
                     .out_stride = group() * shape_.head_dim,
                     .to = query.piece->out + query.row * query.piece->out_stride + column});
  }
}

template class SingleQueryAttention<float>;
template class SingleQueryAttention<uint16_t>;

using cpu::kKeyBlock;
using cpu::kPanelDepth;
using cpu::kPanelLines;
using cpu::kStrip;

template <class T>
StripAttention<T>::StripAttention(ThreadPool& pool, const AttentionShape& shape,
                                  cpu::Scratch<char>& scratch)
    : pool_(pool),
      shape_(shape),
      gemm_(*cpu::PanelGemmFor<T>(cpu::BestPanelIsa())),
      kernels_(cpu::AttentionKernelsFor<T>(cpu::BestPanelIsa())),
      scratch_(scratch),
      workers_(static_cast<size_t>(pool.threads())) {}

template <class T>
int64_t StripAttention<T>::Carve(char* base) {
  cpu::Carver carver(base);
  keys_at_ = carver.Take<T>(shape_.kv_heads * blocks_ * k_block());
  values_at_ = carver.Take<T>(shape_.kv_heads * blocks_ * v_block());
  for (Worker& w : workers_) {
    w.q = carver.Take<T>(cpu::PanelElements(kStrip, shape_.head_dim));
    w.s = carver.Take<float>(kStrip * kKeyBlock);
    w.p = carver.Take<T>(cpu::PanelElements(kStrip, kKeyBlock));
    w.o = carver.Take<float>(kStrip * padded_dim());
    w.top = carver.Take<float>(kStrip);
    w.sum = carver.Take<float>(kStrip);
    w.lse = carver.Take<float>(kStrip);
  }
  return carver.used();
}

template <class T>
void StripAttention<T>::Run(const AttentionPiece<T>& piece) {
  const int64_t keys = piece.position + piece.rows;
  blocks_ = (keys + kKeyBlock - 1) / kKeyBlock;
  Carve(scratch_.Get(Carve(nullptr)));
  pool_.ParallelFor(shape_.kv_heads * blocks_,
                    [&](int64_t i, int) { Pack(piece, i / blocks_, i % blocks_); });
  const int64_t strips = (piece.rows + kStrip - 1) / kStrip;
  pool_.ParallelFor(shape_.heads * strips, [&](int64_t i, int thread) {
    const cpu::PanelThreadScope scope;
    // Longest strips first.
    Strip(piece, i / strips, strips - 1 - i % strips, workers_[static_cast<size_t>(thread)]);
  });
}

template <class T>
void StripAttention<T>::Pack(const AttentionPiece<T>& piece, int64_t kv_head, int64_t block) {
  const int64_t keys = piece.position + piece.rows;
  const int count = static_cast<int>(std::min<int64_t>(kKeyBlock, keys - block * kKeyBlock));
  const int64_t from = kv_head * piece.head_stride + block * kKeyBlock * shape_.head_dim;
  const int64_t to = kv_head * blocks_ + block;
  gemm_.pack_b({piece.keys + from, shape_.head_dim, true}, shape_.head_dim, count,
               keys_at_ + to * k_block());
  gemm_.pack_b({piece.values + from, shape_.head_dim}, count, shape_.head_dim,
               values_at_ + to * v_block());
}

template <class T>
void StripAttention<T>::Strip(const AttentionPiece<T>& piece, int64_t head, int64_t strip,
                              const Worker& w) const {
  const int64_t row = strip * kStrip, kv_head = head / group();
  const int rows = static_cast<int>(std::min<int64_t>(kStrip, piece.rows - row));
  const int64_t first_query = piece.position + row;
  const int64_t column = head * shape_.head_dim;
  gemm_.pack_a({piece.q + row * piece.q_stride + column, piece.q_stride}, rows, shape_.head_dim,
               w.q);
  std::fill_n(w.top, kStrip, cpu::kEmptyTop);
  std::fill_n(w.sum, kStrip, 0.0f);
  for (int64_t first_key = 0; first_key < first_query + rows; first_key += kKeyBlock) {
    const int64_t seen = std::min<int64_t>(kKeyBlock, first_query + rows - first_key);
    const cpu::StripMask mask = {.doc_begin = nullptr,
                                 .first_query = first_query,
                                 .first_key = first_key,
                                 .rows = rows,
                                 .from = 0,
                                 .to = static_cast<int>(cpu::RoundUp(seen, kPanelDepth))};
    const int64_t block = kv_head * blocks_ + first_key / kKeyBlock;
    const int keys =
        static_cast<int>(std::min<int64_t>(kKeyBlock, piece.position + piece.rows - first_key));
    Step(mask, keys_at_ + block * k_block(), values_at_ + block * v_block(), keys, first_key == 0,
         w);
  }
  float amax = 0;
  kernels_.finish({.rows = rows,
                   .cols = shape_.head_dim,
                   .o = w.o,
                   .o_stride = padded_dim(),
                   .top = w.top,
                   .sum = w.sum,
                   .out = piece.out + row * piece.out_stride + column,
                   .out_stride = piece.out_stride,
                   .lse = w.lse,
                   .amax = &amax});
}

template <class T>
void StripAttention<T>::Step(const cpu::StripMask& mask, const T* k, const T* v, int keys,
                             bool first, const Worker& w) const {
  const int dim = shape_.head_dim, padded = static_cast<int>(padded_dim());
  const int rows = static_cast<int>(cpu::RoundUp(mask.rows, kPanelLines));
  // Packed columns are padded to a multiple of sixteen; the packed depth of v ends with the keys.
  const int cols = std::min<int>(mask.to, static_cast<int>(cpu::RoundUp(keys, kPanelLines)));
  const int depth = std::min(mask.to, keys);
  constexpr float kLog2E = 1.44269504088896341f;
  gemm_.multiply(w.q, k, rows, cols, dim, w.s, kKeyBlock, false);
  kernels_.softmax({.mask = mask,
                    .factor = shape_.scale * kLog2E,
                    .s = w.s,
                    .p = w.p,
                    .top = w.top,
                    .sum = w.sum,
                    .o = first ? nullptr : w.o,
                    .o_stride = padded});
  if constexpr (sizeof(T) == 2) {
    gemm_.multiply_slices(w.p, kKeyBlock, v, keys, rows, padded, depth, w.o, padded, !first);
  } else {
    gemm_.pack_a({w.s, kKeyBlock}, rows, depth, w.p);
    gemm_.multiply_slices(w.p, depth, v, keys, rows, padded, depth, w.o, padded, !first);
  }
}

template class StripAttention<float>;
template class StripAttention<uint16_t>;

}  // namespace nibble
