// One strip of query rows against blocks of packed keys and values, with an online softmax: the
// part of attention's forward pass that whole sequences and key/value caches share.
//
// Ownership: borrows. Thread-safety: as PanelGemm; one StripMemory per thread.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_STRIP_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_STRIP_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/layers/attention_plan.h"
#include "kernels/cpu/layers/panel_layout.h"

namespace nibble::cpu {

// Working memory of one thread.
template <class T>
struct StripMemory {
  T* q;        // packed a: [kStrip, head_dim]
  float* s;    // [kStrip, kKeyBlock]
  T* p;        // packed a: [kStrip, kKeyBlock]
  float* o;    // [kStrip, padded head_dim]
  float* top;  // [kStrip]
  float* sum;  // [kStrip]
};

// Keys and values of one key head, packed block by block: k as b of q·kᵀ, v as b of p·v.
template <class T>
struct KeyPanels {
  T* k;
  T* v;
};

template <class T>
class AttentionStrip {
 public:
  AttentionStrip(const AttentionShape& shape, const AttentionEngine<T>& engine)
      : dim_(shape.head_dim),
        padded_dim_(static_cast<int>(RoundUp(shape.head_dim, kPanelLines))),
        factor_(Log2Factor(shape)),
        engine_(engine) {}

  StripMemory<T> TakeMemory(Carver& carver) const {
    StripMemory<T> memory;
    memory.q = carver.Take<T>(PanelElements(kStrip, dim_));
    memory.s = carver.Take<float>(kStrip * kKeyBlock);
    memory.p = carver.Take<T>(PanelElements(kStrip, kKeyBlock));
    memory.o = carver.Take<float>(int64_t{kStrip} * padded_dim_);
    memory.top = carver.Take<float>(kStrip);
    memory.sum = carver.Take<float>(kStrip);
    return memory;
  }
  KeyPanels<T> TakePanels(Carver& carver, int64_t blocks) const {
    T* const k = carver.Take<T>(blocks * k_block());
    return {k, carver.Take<T>(blocks * v_block())};
  }

  // k, v: [keys, head_dim], rows `stride` apart, become block `block` of the panels.
  void Pack(const T* k, const T* v, int64_t stride, int keys, int64_t block,
            const KeyPanels<T>& panels) const {
    engine_.gemm.pack_b({k, stride, true}, dim_, keys, panels.k + block * k_block());
    engine_.gemm.pack_b({v, stride}, keys, dim_, panels.v + block * v_block());
  }

  // q: [rows, head_dim].
  void Begin(const T* q, int64_t stride, int rows, const StripMemory<T>& m) const {
    engine_.gemm.pack_a({q, stride}, rows, dim_, m.q);
    std::fill_n(m.top, kStrip, kEmptyTop);
    std::fill_n(m.sum, kStrip, 0.0f);
  }

  // Block mask.first_key / kKeyBlock of the panels, which has `keys` keys.
  void Add(const StripMask& mask, int keys, bool first, const KeyPanels<T>& panels,
           const StripMemory<T>& m) const {
    const int64_t block = mask.first_key / kKeyBlock;
    const int rows = static_cast<int>(RoundUp(mask.rows, kPanelLines));
    // Packed columns end at a multiple of sixteen, the packed depth of v ends with the keys.
    const int cols = std::min<int>(mask.to, RoundUp(keys, kPanelLines)) - mask.from;
    const int depth = std::min(mask.to, keys) - mask.from;
    const T* k = panels.k + block * k_block() + mask.from / kPanelLines * PanelGroup(dim_);
    const T* v = panels.v + block * v_block() + mask.from * kPanelLines;
    engine_.gemm.multiply(m.q, k, rows, cols, dim_, m.s + mask.from, kKeyBlock, false);
    engine_.kernels.softmax({.mask = mask,
                             .factor = factor_,
                             .s = m.s,
                             .p = m.p,
                             .top = m.top,
                             .sum = m.sum,
                             .o = first ? nullptr : m.o,
                             .o_stride = padded_dim_});
    if constexpr (sizeof(T) == 2) {
      engine_.gemm.multiply_slices(m.p + mask.from * kPanelLines, kKeyBlock, v, keys, rows,
                                   padded_dim_, depth, m.o, padded_dim_, !first);
    } else {
      engine_.gemm.pack_a({m.s + mask.from, kKeyBlock}, rows, depth, m.p);
      engine_.gemm.multiply_slices(m.p, depth, v, keys, rows, padded_dim_, depth, m.o, padded_dim_,
                                   !first);
    }
  }

  // out: [rows, head_dim], lse: [rows]; amax as SoftmaxFinish's.
  void Finish(int rows, const StripMemory<T>& m, T* out, int64_t out_stride, float* lse,
              float& amax) const {
    engine_.kernels.finish({.rows = rows,
                            .cols = dim_,
                            .o = m.o,
                            .o_stride = padded_dim_,
                            .top = m.top,
                            .sum = m.sum,
                            .out = out,
                            .out_stride = out_stride,
                            .lse = lse,
                            .amax = &amax});
  }

 private:
  int64_t k_block() const { return PanelElements(kKeyBlock, dim_); }
  int64_t v_block() const { return PanelElements(dim_, kKeyBlock); }

  const int dim_;
  const int padded_dim_;
  const float factor_;
  const AttentionEngine<T> engine_;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_STRIP_H_
