// One request to the scan, as its phases read it.
//
// Ownership: borrows. Thread-safety: values.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SCAN_PROBLEM_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SCAN_PROBLEM_H_

#include <cstdint>

#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/panel_layout.h"
#include "kernels/cpu/layers/scan_kernels.h"
#include "kernels/cpu/layers/scan_plan.h"
#include "kernels/ops/mamba_ops.h"

namespace nibble::cpu {

template <class T>
struct ScanProblem {
  ScanShape shape;
  const float* dt_bias = nullptr;
  const float* d = nullptr;
  const double* rate = nullptr;  // [heads], A
  const ScanPlan* plan = nullptr;
  TokenBlock<const T> xbc = {}, dt = {};
  TokenBlock<const T> dy = {};  // backward pass only

  TokenBlock<const T> X(int64_t row, int64_t head) const { return At(xbc, row, XCol(head)); }
  TokenBlock<const T> B(int64_t row, int64_t group) const { return At(xbc, row, BCol(group)); }
  TokenBlock<const T> C(int64_t row, int64_t group) const { return At(xbc, row, CCol(group)); }
  TokenBlock<const T> Dy(int64_t row, int64_t head) const { return At(dy, row, XCol(head)); }

  int64_t XCol(int64_t head) const { return head * shape.head_dim; }
  int64_t BCol(int64_t group) const { return shape.d_inner() + group * shape.state; }
  int64_t CCol(int64_t group) const { return BCol(shape.groups + group); }
  int64_t heads_per_group() const { return shape.heads / shape.groups; }

  template <class U>
  static TokenBlock<U> At(TokenBlock<U> m, int64_t row, int64_t col) {
    return {m.data + row * m.stride + col, m.stride};
  }
};

// Heads [head_begin, head_end) of a group in a chunk.
struct ScanTask {
  int64_t chunk, group;
  int64_t head_begin, head_end;
};

// The offset of line `line`, the first of a group, in an operand packed `depth` deep.
inline int64_t PanelLine(int64_t line, int64_t depth) {
  return line / kPanelLines * PanelGroup(depth);
}
// The offset of depth `k`, a multiple of kPanelDepth, in a packed operand.
inline int64_t PanelSlice(int64_t k) { return k * kPanelLines; }

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SCAN_PROBLEM_H_
