#include "worker/infer/single_query_attention.h"

#include <algorithm>

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

// Tasks of a query: kv_heads, outermost, by blocks.
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

}  // namespace nibble
