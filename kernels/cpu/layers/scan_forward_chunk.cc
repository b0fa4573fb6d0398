#include "kernels/cpu/layers/scan_forward_chunk.h"

#include <algorithm>
#include <cstdint>

namespace nibble::cpu {

// y_i = Σ_{j≤i} M_ij (C_i·B_j) u_j + exp(s_i) S C_i + D x_i; the Δ_j of u_j = Δ_j x_j is part of
// the matrix, so that the matmul takes x itself.
template <class T>
void ScanForwardChunk<T>::Run(const ScanProblem<T>& problem, const ScanStates<T>& states,
                              const ScanTask& task, TokenBlock<T> y) {
  const ScanPlan& plan = *problem.plan;
  const ScanChunk& chunk = plan.chunk(task.chunk);
  const int tokens = chunk.tokens, most = plan.tokens(), padded = plan.padded();
  const int head_dim = problem.shape.head_dim, state = problem.shape.state;

  const TokenBlock<const T> b = problem.B(chunk.row, task.group);
  const TokenBlock<const T> c = problem.C(chunk.row, task.group);
  T* c_left = c_left_.Get(PanelElements(most, state));
  T* b_right = b_right_.Get(PanelElements(most, state));
  panel_.pack_a({c.data, c.stride}, tokens, state, c_left);
  panel_.pack_b({b.data, b.stride, true}, state, tokens, b_right);
  float* scores = scores_.Get(int64_t{padded} * padded);
  for (int i = 0; i < tokens; i += kScanStrip) {
    const int rows = std::min(kScanStrip, tokens - i);
    panel_.multiply(c_left + PanelLine(i, state), b_right, rows, i + rows, state,
                    scores + int64_t{i} * padded, padded, false);
  }

  T* mixed = mixed_.Get(PanelElements(kScanStrip, most));
  T* x_right = x_right_.Get(PanelElements(head_dim, most));
  float* inside = inside_.Get(kScanStrip * head_dim);
  float* from_state = from_state_.Get(kScanStrip * head_dim);
  const ScanEdges edges = ScanEdges::At(edges_.Get(ScanEdges::kArrays * padded), padded);
  for (int64_t head = task.head_begin; head < task.head_end; ++head) {
    const ScanDecay decay = states.decay(task.chunk, head);
    kernels_.edges(decay, tokens, padded, chunk.entering, chunk.last_doc, edges);
    const ScanMix mix = {tokens, decay, edges, plan.first(task.chunk), plan.end(task.chunk)};
    const TokenBlock<const T> x = problem.X(chunk.row, head);
    panel_.pack_b({x.data, x.stride}, tokens, head_dim, x_right);
    for (int i = 0; i < tokens; i += kScanStrip) {
      const int rows = std::min(kScanStrip, tokens - i);
      kernels_.mix(mix, i, scores + int64_t{i} * padded, padded, mixed);
      panel_.multiply_slices(mixed, tokens, x_right, tokens, rows, head_dim, i + rows, inside,
                             head_dim, false);
      const int entering = std::clamp(chunk.entering - i, 0, rows);
      if (entering > 0) {
        panel_.multiply(c_left + PanelLine(i, state), states.state(task.chunk, head), entering,
                        head_dim, state, from_state, head_dim, false);
      }
      kernels_.finish_y(rows, entering, head_dim, inside, from_state, edges.enter + i,
                        problem.d[head], problem.X(chunk.row + i, head),
                        ScanProblem<T>::At(y, chunk.row + i, problem.XCol(head)));
    }
  }
}

template class ScanForwardChunk<float>;
template class ScanForwardChunk<uint16_t>;

}  // namespace nibble::cpu
