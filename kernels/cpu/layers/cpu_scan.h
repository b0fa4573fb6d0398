// The chunked state-space scan of mamba_ops.h over whole sequences, on the threads of a pool.
//
// A request runs in batches of whole sequences, each in two steps: states from chunk to chunk
// (ScanStates), then all chunks independently, given their states. In the second step a task is one
// chunk of one group, whose heads share C·Bᵀ and, in the backward pass, sum into its dB and dC; if
// there are few such tasks, the heads of a group are divided into blocks. The division depends on
// the shape alone, and sums are taken in the order of heads, blocks and chunks.
//
// Numbers below 2^−126 count as zeros (SubnormalsAreZero).
//
// Requests are checked by the caller (CpuMambaOps). Ownership: borrows the pool, owns its scratch.
// Thread-safety: one request at a time.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CPU_SCAN_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CPU_SCAN_H_

#include <cstdint>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/scan_backward_chunk.h"
#include "kernels/cpu/layers/scan_forward_chunk.h"
#include "kernels/cpu/layers/scan_kernels.h"
#include "kernels/cpu/layers/scan_plan.h"
#include "kernels/cpu/layers/scan_problem.h"
#include "kernels/cpu/layers/scan_states.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/mamba_ops.h"

namespace nibble::cpu {

// T: the type of all matrices of a request.
template <class T>
class CpuScan {
 public:
  // `isa` is one that the processor supports.
  CpuScan(ThreadPool& pool, PanelIsa isa);

  void Run(const ScanForward& request);
  void Run(const ScanBackward& request);

 private:
  void Start(const ScanShape& shape, const ScanParams& params, const SequenceLayout& layout,
             const ConstMatrix& xbc, const ConstMatrix& dt);
  // The number of blocks of a group's heads in a batch of `chunks` chunks.
  int64_t HeadBlocks(int64_t chunks) const;
  ScanTask TaskOf(int64_t index, int64_t chunk_begin, int64_t blocks) const;
  void WriteGroup(int64_t chunk, int64_t group, const float* db, const float* dc,
                  TokenBlock<T> dxbc) const;

  ThreadPool& pool_;
  const ScanKernels<T>& kernels_;
  ScanPlan plan_;
  std::vector<double> rate_;
  ScanProblem<T> problem_;
  ScanStates<T> states_;
  // One per thread.
  std::vector<ScanForwardChunk<T>> forward_;
  std::vector<ScanBackwardChunk<T>> backward_;
  Scratch<ScanHeadSums> sums_;
  // [tasks of a batch, or threads where groups are not cut; dB, dC; tokens, state]
  Scratch<float> group_gradients_;
};

extern template class CpuScan<float>;
extern template class CpuScan<uint16_t>;

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CPU_SCAN_H_
