// The kernels, as the host launches them. All enqueue on `stream` and return at once with the
// status of the launch.
//
// A quantisation consists of: the amax pass if a copy needs one (LaunchTileAmax, or LaunchNaiveAmax
// or LaunchGeneralAmax per copy), LaunchPrepare unless LaunchTileAmax ran (which also prepares),
// then LaunchTile, LaunchMx or LaunchByte for one or both copies, or LaunchNaive or LaunchGeneral
// per copy. LaunchNaive with null outputs and `statistics` adds the statistics of a copy that a
// tile kernel wrote.
//
// Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_QUANTIZE_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_QUANTIZE_KERNELS_H_

#include <cuda_runtime.h>

#include "kernels/cuda/quantize_args.h"

namespace nibble::gpu {

// Whether the fast amax pass supports these copies: those with an amax pass have no transform, or
// are column copies with one of size 16, have no amax of each line, and the source is aligned.
bool TileAmaxTakes(const QuantizeArgs& args);
// Finds amax and counts of every copy with an amax pass, reading the source once, and prepares
// all copies.
cudaError_t LaunchTileAmax(const QuantizeArgs& args, int processors, cudaStream_t stream);

// Supports every NVFP4 copy that is not `general`; does not prepare.
cudaError_t LaunchNaiveAmax(const QuantizeArgs& args, int copy, cudaStream_t stream);

// Supports every copy; does not prepare. The copy's `line_amax` must be zero.
cudaError_t LaunchGeneralAmax(const QuantizeArgs& args, int copy, cudaStream_t stream);

// Computes scales from amax and writes the heads, for all copies.
cudaError_t LaunchPrepare(const QuantizeArgs& args, cudaStream_t stream);

// Whether one tile kernel supports these copies: a row copy without a transform and a column copy
// with or without one, with equal rounding and block shape, of an aligned source.
bool TileTakes(const QuantizeArgs& args);
cudaError_t LaunchTile(const QuantizeArgs& args, cudaStream_t stream);

// Whether the fast kernel of MXFP4 supports these copies, without statistics: a row copy without a
// transform and a column copy without one or with one of size 32, with equal rounding and block
// shape, of whole blocks of an aligned source.
bool MxTakes(const QuantizeArgs& args);
cudaError_t LaunchMx(const QuantizeArgs& args, cudaStream_t stream);

// Whether the fast kernel of one-byte elements supports these copies, without statistics: of one
// format and block shape, rounded to nearest, without a transform, of an aligned source.
bool ByteTakes(const QuantizeArgs& args);
cudaError_t LaunchByte(const QuantizeArgs& args, cudaStream_t stream);

// Supports every NVFP4 copy that is not `general`.
cudaError_t LaunchNaive(const QuantizeArgs& args, int copy, bool statistics, cudaStream_t stream);

// Supports every copy.
cudaError_t LaunchGeneral(const QuantizeArgs& args, int copy, bool statistics, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_QUANTIZE_KERNELS_H_
