// The geometry of attention, shared by its passes: where the operands of a head lie, how a sequence
// is divided into strips of queries and blocks of keys, and how scratch memory is divided. It
// follows from the shape alone.
//
// A "pair" is one sequence and one key head: its keys and values, and `group` query heads.
//
// Ownership: borrows. Thread-safety: values.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_PLAN_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_PLAN_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/layers/attention_kernels.h"
#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/ops/attention_ops.h"

namespace nibble::cpu {

template <class T>
struct AttentionEngine {
  const PanelGemm<T>& gemm;
  const AttentionKernels<T>& kernels;
};

// Divides one allocation into 64-byte aligned parts; with a null base it only measures.
class Carver {
 public:
  explicit Carver(char* base) : base_(base) {}
  template <class T>
  T* Take(int64_t count) {
    const int64_t at = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

constexpr int64_t RoundUp(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// exp(scale · x) = 2^(Log2Factor · x).
inline float Log2Factor(const AttentionShape& shape) { return shape.scale * 1.44269504088896341f; }

struct KeyRange {
  int64_t first, end;  // within the sequence
};

struct AttentionPlan {
  AttentionShape shape;
  SequenceLayout layout;

  int64_t pairs() const { return layout.sequences * shape.kv_heads; }
  int group() const { return shape.heads / shape.kv_heads; }
  int64_t sequence(int64_t pair) const { return pair / shape.kv_heads; }
  int kv_head(int64_t pair) const { return static_cast<int>(pair % shape.kv_heads); }
  int head(int64_t pair, int member) const { return kv_head(pair) * group() + member; }

  // Row of token t of a sequence in every matrix.
  int64_t row(int64_t sequence, int64_t t) const { return sequence * layout.length + t; }

  // Heads' columns in qkv and in out.
  int64_t query_col(int head) const { return int64_t{head} * shape.head_dim; }
  int64_t key_col(int kv_head) const { return int64_t{shape.heads + kv_head} * shape.head_dim; }
  int64_t value_col(int kv_head) const {
    return int64_t{shape.heads + shape.kv_heads + kv_head} * shape.head_dim;
  }

  int64_t padded_dim() const { return RoundUp(shape.head_dim, kPanelLines); }
  int64_t strips() const { return (layout.length + kStrip - 1) / kStrip; }
  int64_t blocks() const { return (layout.length + kKeyBlock - 1) / kKeyBlock; }
  int block_keys(int64_t block) const {
    return static_cast<int>(std::min<int64_t>(kKeyBlock, layout.length - block * kKeyBlock));
  }
  int strip_rows(int64_t strip) const {
    return static_cast<int>(std::min<int64_t>(kStrip, layout.length - strip * kStrip));
  }

  const int32_t* doc_begin(int64_t sequence, int64_t t) const {
    return layout.doc_begin == nullptr ? nullptr : layout.doc_begin + row(sequence, t);
  }
  // The keys that some query of the strip attends to.
  KeyRange StripKeys(int64_t sequence, int64_t strip) const {
    const int32_t* begin = doc_begin(sequence, strip * kStrip);
    return {begin == nullptr ? 0 : *begin, strip * kStrip + strip_rows(strip)};
  }
  // The strip against one block of keys; from == to if it attends to none of them.
  StripMask MaskOf(int64_t sequence, int64_t strip, int64_t block) const {
    const KeyRange keys = StripKeys(sequence, strip);
    const int64_t first_key = block * kKeyBlock;
    const int64_t first = std::clamp<int64_t>(keys.first - first_key, 0, kKeyBlock);
    const int64_t end = std::clamp<int64_t>(keys.end - first_key, 0, kKeyBlock);
    const int64_t from = first / kPanelDepth * kPanelDepth;
    const int64_t to = end <= first ? from : RoundUp(end, kPanelDepth);
    return {.doc_begin = doc_begin(sequence, strip * kStrip),
            .first_query = strip * kStrip,
            .first_key = first_key,
            .rows = strip_rows(strip),
            .from = static_cast<int>(from),
            .to = static_cast<int>(to)};
  }
  float factor() const { return Log2Factor(shape); }
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_PLAN_H_
