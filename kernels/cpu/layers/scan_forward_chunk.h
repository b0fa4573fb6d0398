// The scan inside one chunk, given the state that enters it.
//
// Ownership: owns its scratch. Thread-safety: none; each thread has its own.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SCAN_FORWARD_CHUNK_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SCAN_FORWARD_CHUNK_H_

#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/scan_kernels.h"
#include "kernels/cpu/layers/scan_problem.h"
#include "kernels/cpu/layers/scan_states.h"
#include "kernels/cpu/layers/scratch.h"

namespace nibble::cpu {

template <class T>
class ScanForwardChunk {
 public:
  ScanForwardChunk(const ScanKernels<T>& kernels, const PanelGemm<T>& panel)
      : kernels_(kernels), panel_(panel) {}

  // Writes the columns of the task's heads; y: [tokens, d_inner]. Needs a PanelThreadScope on the
  // thread.
  void Run(const ScanProblem<T>& problem, const ScanStates<T>& states, const ScanTask& task,
           TokenBlock<T> y);

 private:
  const ScanKernels<T>& kernels_;
  const PanelGemm<T>& panel_;
  Scratch<float> edges_, scores_, inside_, from_state_;
  Scratch<T> c_left_, b_right_, mixed_, x_right_;
};

extern template class ScanForwardChunk<float>;
extern template class ScanForwardChunk<uint16_t>;

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SCAN_FORWARD_CHUNK_H_
