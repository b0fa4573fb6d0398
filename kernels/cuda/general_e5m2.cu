// The general kernels for E5M2 elements; see general_kernel.cuh.
#include "kernels/cuda/general_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchGeneralE5m2(const Source& x, const CopyArgs& copy, bool statistics,
                              cudaStream_t stream) {
  return LaunchGeneralOf<E5M2>(x, copy, statistics, stream);
}

}  // namespace nibble::gpu
