// Worked vectors on the card, with zero tolerance: the kernels must write what a file lists.
//
// Thread-safety: one call at a time per backend.
#ifndef NIBBLE_KERNELS_CUDA_VECTOR_CHECK_H_
#define NIBBLE_KERNELS_CUDA_VECTOR_CHECK_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"

namespace nibble {

// Runs every NVFP4 block and every Hadamard case of 16 in the file at `path`: each block at many
// places of a matrix, as a row copy and as a column copy, FP32 and (if exact) BF16. Prints what was
// compared and what this backend does not support; returns the number of differences. NotFound if
// there is no such file, InvalidArgument if it has no case.
absl::StatusOr<int64_t> CheckVectors(const std::string& path, CpuBackend& cpu, CudaBackend& cuda);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_VECTOR_CHECK_H_
