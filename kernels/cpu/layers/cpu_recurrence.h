// Mamba-2's convolution and scan for sequences that a request continues: token by token, from the
// states that the earlier tokens left. The result of a token does not depend on how the tokens are
// divided into requests, to the bit.
//
// Numbers below 2^−126 count as zeros in the scan (SubnormalsAreZero).
//
// Requests are checked by the caller (CpuMambaOps). Ownership: borrows the pool, owns its scratch.
// Thread-safety: one request at a time. Results do not depend on the number of threads.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CPU_RECURRENCE_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CPU_RECURRENCE_H_

#include "common/thread_pool.h"
#include "kernels/cpu/layers/recurrence_kernels.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/mamba_ops.h"

namespace nibble::cpu {

class CpuRecurrence {
 public:
  // `isa` is one that the processor supports.
  CpuRecurrence(ThreadPool& pool, LayerIsa isa) : pool_(pool), isa_(isa) {}

  void Run(const ConvForward& request);
  void Run(const ScanForward& request);

 private:
  template <class T>
  void RunAs(const ConvForward& request);
  template <class T>
  void RunAs(const ScanForward& request);

  ThreadPool& pool_;
  const LayerIsa isa_;
  Scratch<float> taps_;   // [width, channels]
  Scratch<float> rooms_;  // [threads; Δ, exp(Δ A), B and C of one token]
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CPU_RECURRENCE_H_
