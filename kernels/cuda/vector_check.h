// Worked vectors on the card, with zero tolerance: what a file lists is what the kernels must
// write.
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

// Runs every NVFP4 block and every Hadamard case of 16 in the file at `path`: each block in many
// places of a matrix, as a row copy and as a column copy, FP32 and (where exact) BF16. Prints what
// was compared and what is not for this backend; returns the number of differences. NotFound where
// there is no such file, InvalidArgument where it holds no case.
absl::StatusOr<int64_t> CheckVectors(const std::string& path, CpuBackend& cpu, CudaBackend& cuda);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_VECTOR_CHECK_H_
