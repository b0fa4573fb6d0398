// The instances of the tile kernels of NVFP4 and of MXFP4, one per source type and rounding, each
// in its own file.
//
// Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_TILE_LAUNCH_H_
#define NIBBLE_KERNELS_CUDA_TILE_LAUNCH_H_

#include <cuda_runtime.h>

#include "kernels/cuda/quantize_args.h"

namespace nibble::gpu {

cudaError_t LaunchTileBf16Nearest(const QuantizeArgs& args, cudaStream_t stream);
cudaError_t LaunchTileBf16Stochastic(const QuantizeArgs& args, cudaStream_t stream);
cudaError_t LaunchTileF32Nearest(const QuantizeArgs& args, cudaStream_t stream);
cudaError_t LaunchTileF32Stochastic(const QuantizeArgs& args, cudaStream_t stream);

cudaError_t LaunchMxBf16Nearest(const TilePair& pair, cudaStream_t stream);
cudaError_t LaunchMxBf16Stochastic(const TilePair& pair, cudaStream_t stream);
cudaError_t LaunchMxF32Nearest(const TilePair& pair, cudaStream_t stream);
cudaError_t LaunchMxF32Stochastic(const TilePair& pair, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_TILE_LAUNCH_H_
