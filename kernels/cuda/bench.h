// Times each CUDA kernel and compares it with the card's own copy bandwidth.
//
// Thread-safety: one thread at a time; the card should be idle otherwise.
#ifndef NIBBLE_KERNELS_CUDA_BENCH_H_
#define NIBBLE_KERNELS_CUDA_BENCH_H_

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "kernels/cuda/cuda_backend.h"

namespace nibble {

// Prints a table: case, shape, median time, GB/s (each byte counted once in and once out) and the
// fraction of the copy bandwidth.
absl::Status RunBench(CudaBackend& cuda, ThreadPool& pool);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_BENCH_H_
