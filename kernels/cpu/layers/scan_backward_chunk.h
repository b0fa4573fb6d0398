// The scan's gradients inside one chunk, given the state that enters it and the gradient of the
// state that leaves it.
//
// The contribution of pairs of tokens to dB and dC is linear in M_ij Δ_j (x_j·dy_i), which is first
// summed over a task's heads, so that one matmul each serves all of them.
//
// Ownership: owns its scratch. Thread-safety: none; each thread has its own.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SCAN_BACKWARD_CHUNK_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SCAN_BACKWARD_CHUNK_H_

#include <cstdint>

#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/scan_kernels.h"
#include "kernels/cpu/layers/scan_problem.h"
#include "kernels/cpu/layers/scan_states.h"
#include "kernels/cpu/layers/scratch.h"

namespace nibble::cpu {

// Terms of the gradients of a head's parameters, summed over one chunk.
struct ScanHeadSums {
  double ddt;       // of raw dt: dt_bias
  double da_delta;  // Σ da Δ: A_log, once times A
  double dd;
};

template <class T>
struct ScanGradients {
  TokenBlock<T> dxbc;  // [tokens, xbc_cols]
  TokenBlock<T> ddt;   // [tokens, heads]
  ScanHeadSums* sums;  // [chunks, heads]
};

template <class T>
class ScanBackwardChunk {
 public:
  ScanBackwardChunk(const ScanKernels<T>& kernels, const PanelGemm<T>& panel)
      : kernels_(kernels), panel_(panel) {}

  // Writes the gradients of the task's heads, and their contribution to the group's dB and dC:
  // [chunk's tokens, state] each. The thread has a PanelThreadScope.
  void Run(const ScanProblem<T>& problem, const ScanStates<T>& states, const ScanTask& task,
           const ScanGradients<T>& out, float* db, float* dc);

 private:
  // The current chunk and the operands that its heads share.
  struct Shared {
    const ScanProblem<T>& problem;
    const ScanStates<T>& states;
    const ScanTask& task;
    const ScanChunk& chunk;
    bool followed;
    TokenBlock<const T> b, c;
    const T* b_left;      // B as [tokens, state]
    const float* scores;  // [j, i]: C_i·B_j
    float* pair_sums;     // [j, i]: Σ over heads of M_ij Δ_j (x_j·dy_i)
  };
  // The packed operands of one head's matmuls: x, dy, S [state, head_dim] and G, each also
  // transposed.
  struct HeadPanels {
    T *x_left, *dy_left, *dy_right, *turned_dy_right;
    T *turned_s_right, *g_right, *turned_g_right;
  };
  HeadPanels PackHead(const Shared& shared, int64_t head);
  void RunHead(const Shared& shared, int64_t head, const ScanGradients<T>& out, float* db,
               float* dc);
  void AddPairs(const Shared& shared, float* db, float* dc);

  const ScanKernels<T>& kernels_;
  const PanelGemm<T>& panel_;
  Scratch<float> scores_, pair_sums_, products_, inside_, from_state_, arrays_;
  Scratch<T> b_left_, c_right_, mixed_, rows_, head_;
};

extern template class ScanBackwardChunk<float>;
extern template class ScanBackwardChunk<uint16_t>;

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SCAN_BACKWARD_CHUNK_H_
