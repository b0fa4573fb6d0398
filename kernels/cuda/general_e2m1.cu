// The general kernels for E2M1 elements; see general_kernel.cuh.
#include "kernels/cuda/general_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchGeneralE2m1(const Source& x, const CopyArgs& copy, bool statistics,
                              cudaStream_t stream) {
  return LaunchGeneralOf<E2M1>(x, copy, statistics, stream);
}

}  // namespace nibble::gpu
