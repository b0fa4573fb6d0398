// State of the emulated CUDA runtime that tests set.
//
// Thread-safety: one host thread.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_EMULATED_RUNTIME_H_
#define NIBBLE_KERNELS_CUDA_GEMM_EMULATED_RUNTIME_H_

namespace nibble::gpu::emulation {

// Whether streams report that a graph is being captured; work runs nevertheless.
extern bool capturing;
// The time that events record, which passes only where a test lets it (gpu_emulation.h).
extern double clock_ms;

}  // namespace nibble::gpu::emulation

#endif  // NIBBLE_KERNELS_CUDA_GEMM_EMULATED_RUNTIME_H_
