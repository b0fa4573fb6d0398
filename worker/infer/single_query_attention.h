// Attention of few tokens over long caches, where reading the cache is all that costs: token by
// token, a block of keys to a task.
//
// Ownership: borrows the pool, owns scratch that grows to the largest call. Thread-safety: one call
// at a time. Results depend on the shapes alone.
#ifndef NIBBLE_WORKER_INFER_SINGLE_QUERY_ATTENTION_H_
#define NIBBLE_WORKER_INFER_SINGLE_QUERY_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/attention_ops.h"
#include "worker/infer/attention_piece.h"
#include "worker/infer/kernels/decode_attention_kernels.h"

namespace nibble {

template <class T>
class SingleQueryAttention {
 public:
  SingleQueryAttention(ThreadPool& pool, cpu::LayerIsa isa, const AttentionShape& shape)
      : pool_(pool), kernels_(cpu::DecodeAttentionKernelsFor(isa).of<T>()), shape_(shape) {}

  void Run(absl::Span<const AttentionPiece<T>> pieces);

 private:
  // One token that asks; its tasks are [first, first + blocks · kv_heads).
  struct Query {
    const AttentionPiece<T>* piece;
    int64_t row;
    int64_t keys;
    int64_t blocks;
    int64_t first;
  };

  int64_t group() const { return shape_.heads / shape_.kv_heads; }
  void RunBlock(const Query& query, int64_t task, int thread);
  void Finish(const Query& query, int64_t kv_head);

  ThreadPool& pool_;
  const cpu::DecodeAttentionOf<T>& kernels_;
  const AttentionShape shape_;
  std::vector<Query> queries_;
  cpu::Scratch<float> rooms_, tops_, sums_, outs_;
  // Of this call: [threads, room], and by task [group], [group], [group, head_dim].
  float *room_at_ = nullptr, *top_at_ = nullptr, *sum_at_ = nullptr, *out_at_ = nullptr;
};

extern template class SingleQueryAttention<float>;
extern template class SingleQueryAttention<uint16_t>;

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_SINGLE_QUERY_ATTENTION_H_
