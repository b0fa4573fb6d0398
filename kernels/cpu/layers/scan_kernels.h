// The vector parts of the chunked scan: the operations between its matmuls. Compiled once per
// instruction set (isa.bzl), and those for BF16 once more with AVX512-BF16.
//
// One head in one chunk of q tokens, with a_i = Δ_i A and s_i = Σ_{j≤i} a_j inside the chunk;
// M_ij = exp(s_i − s_j) where token i depends on j, else 0; S [state, head_dim] enters the chunk
// and is stored with state outermost, as is G, the gradient of the state that leaves. Arrays with a
// value per token are padded to whole vectors, as are rows of matrices over pairs of tokens. x, dy,
// … are [tokens, head_dim] inside wider matrices.
//
// Exponents are never positive, and differences are formed before exp. s is stored as the sum of
// two floats, so that differences stay accurate even if one token's a is much larger than the
// others'.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SCAN_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SCAN_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/panel_gemm.h"

namespace nibble::cpu {

// The number of tokens of a chunk that go through matmuls and kernels together.
inline constexpr int kScanStrip = 2 * kPanelLines;

// The exponents of one head in a chunk: four consecutive arrays [padded], written by `decays`.
// Lanes after the last token have delta 0 and the last token's sum.
struct ScanDecay {
  const float* delta;
  const float* sum;      // s
  const float* sum_low;  // the rounding error of `sum`
  const float* slope;    // dΔ/d(raw dt)

  static constexpr int kArrays = 4;
  static ScanDecay At(const float* arrays, int64_t padded) {
    return {arrays, arrays + padded, arrays + 2 * padded, arrays + 3 * padded};
  }
};

// Exponentials of one head in a chunk, [padded] each.
struct ScanEdges {
  float* enter;  // exp(s_i) for tokens that depend on S, else 0
  float* leave;  // exp(s_q − s_j) for tokens that contribute to the state that leaves, else 0
  float* leave_delta;  // the same times Δ_j
  float* until;        // exp(s_r − s_j), r the last token of j's group of sixteen
  float* until_delta;  // the same times Δ_j

  static constexpr int kArrays = 5;
  static ScanEdges At(float* arrays, int64_t padded) {
    return {arrays, arrays + padded, arrays + 2 * padded, arrays + 3 * padded, arrays + 4 * padded};
  }
};

// A block of a token matrix.
template <class T>
struct TokenBlock {
  T* data;
  int64_t stride;
};

// Tokens [begin, end) of a chunk.
struct ScanRange {
  int begin, end;
};

// Rows that are read or written soon. The rows of a wide matrix are too far apart for the
// processor's prefetcher, so kernels prefetch them, a cache line with each of their own vectors.
struct ScanAhead {
  const void* data = nullptr;
  int64_t stride = 0;  // bytes
  int rows = 0;
  int row_bytes = 0;

  // [rows, cols] at m.
  template <class T>
  static ScanAhead Of(TokenBlock<T> m, int rows, int cols) {
    constexpr int kBytes = sizeof(T);
    return {m.data, m.stride * kBytes, rows, cols * kBytes};
  }
  // A contiguous range of memory.
  template <class T>
  static ScanAhead Of(const T* data, int64_t elements) {
    constexpr int kRow = 128;
    return {data, kRow, static_cast<int>(elements * sizeof(T) / kRow), kRow};
  }
};

struct ScanMix {
  int tokens;
  ScanDecay decay;
  ScanEdges edges;
  const int32_t* first;  // ScanPlan::first
  const int32_t* end;    // ScanPlan::end
};

template <class T>
struct ScanKernels {
  // dt: [tokens, heads]; rate: [heads], A; out: [heads, ScanDecay::kArrays, padded].
  void (*decays)(TokenBlock<const T> dt, int tokens, int padded, int heads, const float* dt_bias,
                 const double* rate, float* out);
  void (*edges)(const ScanDecay& decay, int tokens, int padded, int entering, int last_doc,
                const ScanEdges& out);

  // scale_i · x_i, rounded, for the rows of a range; zeros elsewhere. Packed as the right operand
  // [rows, cols] of a panel matmul.
  void (*scale_pack)(TokenBlock<const T> x, const float* scale, ScanRange range, int rows, int cols,
                     T* packed, const ScanAhead& ahead);
  // scale_i · x_i, rounded, row-major and contiguous; zeros before `begin`.
  void (*scale_rows)(TokenBlock<const T> x, const float* scale, int begin, int rows, int cols,
                     T* out);

  // state: [rows, cols], contiguous. Rounds it into `out`, packed as the right operand of a panel
  // matmul; then, if it decays, state *= decay.
  void (*carry_packed)(float* state, int rows, int cols, bool decays, float decay, T* out,
                       const ScanAhead& ahead);
  // The same with row-major `out`.
  void (*carry_rows)(float* state, int rows, int cols, bool decays, float decay, TokenBlock<T> out,
                     const ScanAhead& ahead);
  // Σ gradient · state, both [rows, cols], the former contiguous.
  double (*dot)(const float* gradient, TokenBlock<const T> state, int rows, int cols);

  // The strip of rows i from `begin` on: packed = M_ij scores_ij Δ_j as a left operand [i, j] of
  // depth `tokens`, of which the depths before the strip's end are written. scores: row `begin` of
  // [i, j], `stride` apart.
  void (*mix)(const ScanMix& mix, int begin, const float* scores, int64_t stride, T* packed);
  // The strip of rows j from `begin` on, transposed: scores_ji = C_i·B_j, products_ji = x_j·dy_i,
  // pair_sums_ji, from row `begin` on.
  //   packed = M_ij scores_ji as a left operand [j, i], from depth `begin` on;
  //   pair_sums_ji += M_ij Δ_j products_ji;
  //   inside_k = Σ_{i≥k>j} M_ij Δ_j scores_ji products_ji for k in the strip.
  // Strips come in order; columns: [padded] is their scratch, zero before the first.
  void (*mix_backward)(const ScanMix& mix, int begin, const float* scores, const float* products,
                       int64_t stride, T* packed, float* pair_sums, float* inside, float* columns,
                       const ScanAhead& ahead);

  // y = inside + enter · from_state + d · x; from_state has the first `entering` rows.
  void (*finish_y)(int rows, int entering, int cols, const float* inside, const float* from_state,
                   const float* enter, float d, TokenBlock<const T> x, TokenBlock<T> y);
  // du = inside + leave · from_state (the latter only for rows from `leaving` on);
  // dx = Δ du + d dy; x_du_j = x_j·du_j; left_j = leave_j Δ_j x_j·from_state_j, padded.
  void (*finish_dx)(int rows, int leaving, int cols, const float* inside, const float* from_state,
                    const float* leave, const float* delta, float d, TokenBlock<const T> x,
                    TokenBlock<const T> dy, TokenBlock<T> dx, float* x_du, float* left);
  // dc_i += enter_i · from_state_i; entered_i = enter_i · from_state_i·c_i, for the first
  // `entering` of `rows`; zero for the others, padded. from_state, dc: [., cols], contiguous.
  void (*finish_dc)(int rows, int entering, int cols, const float* from_state, const float* enter,
                    TokenBlock<const T> c, float* dc, float* entered);

  // into += from, n elements.
  void (*add)(const float* from, int64_t n, float* into);
  // Contiguous rows, rounded.
  void (*round_rows)(const float* from, int rows, int cols, TokenBlock<T> to);

  static const ScanKernels baseline, avx2, avx512, avx512bf16;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SCAN_KERNELS_H_
