// The general kernels for E4M3 elements; see general_kernel.cuh.
#include "kernels/cuda/general_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchGeneralE4m3(const Source& x, const CopyArgs& copy, bool statistics,
                              cudaStream_t stream) {
  return LaunchGeneralOf<E4M3>(x, copy, statistics, stream);
}

}  // namespace nibble::gpu
