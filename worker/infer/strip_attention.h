// Attention of many tokens over their cache, on the matrix units: the strips of queries and blocks
// of keys of training's attention, with queries that begin anywhere in the sequence.
//
// Ownership: borrows the pool and scratch that grows to the largest call. Thread-safety: one call
// at a time. Results depend on the shapes alone.
#ifndef NIBBLE_WORKER_INFER_STRIP_ATTENTION_H_
#define NIBBLE_WORKER_INFER_STRIP_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/cpu/layers/attention_kernels.h"
#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/attention_ops.h"
#include "worker/infer/attention_piece.h"

namespace nibble {

template <class T>
class StripAttention {
 public:
  // `scratch` is its own during Run only.
  StripAttention(ThreadPool& pool, const AttentionShape& shape, cpu::Scratch<char>& scratch);

  void Run(const AttentionPiece<T>& piece);

 private:
  // What one thread works in.
  struct Worker {
    T* q;        // packed a: [kStrip, head_dim]
    float* s;    // [kStrip, kKeyBlock]
    T* p;        // packed a: [kStrip, kKeyBlock]
    float* o;    // [kStrip, padded_dim]
    float* top;  // [kStrip]
    float* sum;  // [kStrip]
    float* lse;  // [kStrip], of no use here
  };

  // Places of this call's keys, values and workers from `base` on; gives the bytes they take.
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

#endif  // NIBBLE_WORKER_INFER_STRIP_ATTENTION_H_
