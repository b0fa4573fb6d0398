// Attention and rotary positions on the CPU, of whole sequences and over key/value caches.
//
// Ownership: borrows the pool, owns scratch that grows to the largest request, and a table of
// rotations. Execution model: an operation is done when its call returns. Thread-safety: one call
// at a time.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CPU_ATTENTION_OPS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CPU_ATTENTION_OPS_H_

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/rope_kernels.h"
#include "kernels/cpu/layers/rope_table.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/attention_ops.h"

namespace nibble {

class CpuAttentionOps : public AttentionOps {
 public:
  // `isa` is one that the processor supports.
  explicit CpuAttentionOps(ThreadPool& pool, cpu::PanelIsa isa = cpu::BestPanelIsa());

  absl::Status Run(const Rope& request) override;
  absl::Status Forward(const AttentionForward& request) override;
  absl::Status Backward(const AttentionBackward& request) override;

 private:
  template <class T>
  void Rotate(const Rope& request, void (*kernel)(const cpu::RopeRows<T>&));
  template <class T>
  void Forward(const AttentionForward& request);

  ThreadPool& pool_;
  const cpu::PanelIsa isa_;
  const cpu::RopeKernels& rope_;
  cpu::RopeTable table_;
  cpu::Scratch<char> scratch_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CPU_ATTENTION_OPS_H_
