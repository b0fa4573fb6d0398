// The convolution of mamba_ops.h over whole sequences, on the threads of a pool: divided into
// blocks of rows and channels by shape alone; the sums for the parameters' gradients are taken per
// block of rows and added in the order of the blocks.
//
// Requests are checked by the caller (CpuMambaOps). Ownership: borrows the pool, owns its scratch.
// Thread-safety: one request at a time.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CPU_CONV_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CPU_CONV_H_

#include <cstdint>

#include "common/thread_pool.h"
#include "kernels/cpu/layers/conv_kernels.h"
#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/mamba_ops.h"

namespace nibble::cpu {

// weight: [channels, width]; returns [width, channels] in `scratch`.
const float* TapsByColumn(const float* weight, int width, int64_t channels,
                          Scratch<float>& scratch);

class CpuConv {
 public:
  CpuConv(ThreadPool& pool, PanelIsa isa) : pool_(pool), isa_(isa) {}

  void Forward(const ConvForward& request);
  void Backward(const ConvBackward& request);

 private:
  template <class T>
  void Run(const ConvForward& request, const ConvParams& params);
  template <class T>
  void Run(const ConvBackward& request, const ConvParams& params);
  // The taps, and how many earlier rows each row depends on.
  ConvParams Prepare(const SequenceLayout& layout, int width, const float* weight,
                     const float* bias, int64_t channels);

  ThreadPool& pool_;
  const PanelIsa isa_;
  Scratch<float> taps_;  // [width, channels]
  Scratch<uint8_t> reach_;
  Scratch<float> sums_;   // [row blocks, width + 1, channels]
  Scratch<float> carry_;  // [threads, width − 1, channels of a block]
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CPU_CONV_H_
