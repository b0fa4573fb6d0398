// Attention over a KV cache, by two algorithms:
//
//   SingleQueryAttention   few tokens over long caches, where reading the cache dominates: token by
//                          token, one block of keys per task
//   StripAttention         many tokens, on the matrix units: training's strips of queries and
//                          blocks of keys, with queries that begin anywhere in the sequence
//
// KvCache stores keys and values of one attention layer of one sequence by key head: [kv_heads,
// capacity, head_dim] each, so that a head's keys are contiguous.
//
// Ownership: a KvCache owns its memory; the algorithms borrow the thread pool and use scratch that
// grows to the largest call (StripAttention borrows it). Thread-safety: several threads may write
// different heads and positions of a KvCache; the algorithms run one call at a time. Results depend
// on the shapes alone.
#ifndef NIBBLE_WORKER_INFER_CACHED_ATTENTION_H_
#define NIBBLE_WORKER_INFER_CACHED_ATTENTION_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/attention_kernels.h"
#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/attention_ops.h"
#include "kernels/tensor/memory.h"
#include "worker/infer/decode_mixer.h"
#include "worker/infer/kernels/decode_attention_kernels.h"

namespace nibble {

// Queries of one sequence against its cache. Query head h reads key head h / (heads / kv_heads). T
// is float or uint16_t (BF16).
template <class T>
struct AttentionPiece {
  int64_t rows;      // query tokens
  int64_t position;  // of the first; token r sees the keys of positions 0 … position + r
  const T* q;        // [rows, heads · head_dim]
  int64_t q_stride;
  const T* keys;        // [kv_heads, head_stride], with [position + rows, head_dim] filled
  const T* values;      // as keys
  int64_t head_stride;  // elements
  T* out;               // [rows, heads · head_dim]
  int64_t out_stride;
};

template <class T>
class KvCache : public LayerState {
 public:
  // ResourceExhausted as Memory::Allocate.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(Memory& memory, int64_t kv_heads,
                                                         int64_t capacity, int64_t head_dim) {
    const int64_t bytes = kv_heads * capacity * head_dim * static_cast<int64_t>(sizeof(T));
    NIBBLE_ASSIGN_OR_RETURN(Buffer keys, memory.Allocate(static_cast<size_t>(bytes)));
    NIBBLE_ASSIGN_OR_RETURN(Buffer values, memory.Allocate(static_cast<size_t>(bytes)));
    return std::unique_ptr<KvCache>(
        new KvCache(std::move(keys), std::move(values), kv_heads, capacity, head_dim));
  }

  void CopyFrom(const LayerState& other, int64_t length) override {
    const auto& from = static_cast<const KvCache&>(other);
    const auto bytes = static_cast<size_t>(length * head_dim_) * sizeof(T);
    for (int64_t h = 0; h < kv_heads_; ++h) {
      std::memcpy(keys() + h * head_stride(), from.keys() + h * from.head_stride(), bytes);
      std::memcpy(values() + h * head_stride(), from.values() + h * from.head_stride(), bytes);
    }
  }
  int64_t bytes() const override { return static_cast<int64_t>(keys_.bytes() + values_.bytes()); }

  int64_t head_stride() const { return capacity_ * head_dim_; }
  T* keys() const { return keys_.data<T>(); }
  T* values() const { return values_.data<T>(); }

 private:
  KvCache(Buffer keys, Buffer values, int64_t kv_heads, int64_t capacity, int64_t head_dim)
      : keys_(std::move(keys)),
        values_(std::move(values)),
        kv_heads_(kv_heads),
        capacity_(capacity),
        head_dim_(head_dim) {}

  Buffer keys_, values_;
  int64_t kv_heads_, capacity_, head_dim_;
};

template <class T>
class SingleQueryAttention {
 public:
  SingleQueryAttention(ThreadPool& pool, cpu::LayerIsa isa, const AttentionShape& shape)
      : pool_(pool), kernels_(cpu::DecodeAttentionKernelsFor(isa).of<T>()), shape_(shape) {}

  void Run(absl::Span<const AttentionPiece<T>> pieces);

 private:
  // One query token; its tasks are [first, first + blocks · kv_heads).
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

template <class T>
class StripAttention {
 public:
  // Uses `scratch` only during Run.
  StripAttention(ThreadPool& pool, const AttentionShape& shape, cpu::Scratch<char>& scratch);

  void Run(const AttentionPiece<T>& piece);

 private:
  // Working memory of one thread.
  struct Worker {
    T* q;        // packed a: [kStrip, head_dim]
    float* s;    // [kStrip, kKeyBlock]
    T* p;        // packed a: [kStrip, kKeyBlock]
    float* o;    // [kStrip, padded_dim]
    float* top;  // [kStrip]
    float* sum;  // [kStrip]
    float* lse;  // [kStrip], unused here
  };

  // Lays out this call's keys, values and workers from `base` on; returns their size in bytes.
  int64_t Carve(char* base);
  void Pack(const AttentionPiece<T>& piece, int64_t kv_head, int64_t block);
  void Strip(const AttentionPiece<T>& piece, int64_t head, int64_t strip, const Worker& w) const;
  void Step(const cpu::StripMask& mask, const T* k, const T* v, int keys, bool first,
            const Worker& w) const;

  int64_t group() const { return shape_.heads / shape_.kv_heads; }
  int64_t padded_dim() const {
    return (shape_.head_dim + cpu::kPanelLines - 1) / cpu::kPanelLines * cpu::kPanelLines;
  }
  int64_t k_block() const { return cpu::PanelElements(cpu::kKeyBlock, shape_.head_dim); }
  int64_t v_block() const { return cpu::PanelElements(shape_.head_dim, cpu::kKeyBlock); }

  ThreadPool& pool_;
  const AttentionShape shape_;
  const cpu::PanelGemm<T>& gemm_;
  const cpu::AttentionKernels<T>& kernels_;
  cpu::Scratch<char>& scratch_;

  // Of this call.
  int64_t blocks_ = 0;
  T *keys_at_ = nullptr, *values_at_ = nullptr;  // [kv_heads, blocks, k_block or v_block]
  std::vector<Worker> workers_;
};

extern template class StripAttention<float>;
extern template class StripAttention<uint16_t>;

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_CACHED_ATTENTION_H_
