// The instances of the general kernels, one file per element type, and their common launch.
//
// Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_GENERAL_LAUNCH_H_
#define NIBBLE_KERNELS_CUDA_GENERAL_LAUNCH_H_

#include <cuda_runtime.h>

#include "kernels/cuda/quantize_args.h"

namespace nibble::gpu {

// A kernel of the general family over all tiles of a source.
using GeneralKernel = void (*)(Source x, CopyArgs copy);
cudaError_t LaunchGeneralKernel(GeneralKernel kernel, const Source& x, const CopyArgs& copy,
                                cudaStream_t stream);

cudaError_t LaunchGeneralE2m1(const Source& x, const CopyArgs& copy, bool statistics,
                              cudaStream_t stream);
cudaError_t LaunchGeneralE4m3(const Source& x, const CopyArgs& copy, bool statistics,
                              cudaStream_t stream);
cudaError_t LaunchGeneralE5m2(const Source& x, const CopyArgs& copy, bool statistics,
                              cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_GENERAL_LAUNCH_H_
