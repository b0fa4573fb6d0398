// Launches of the kernels of embedding and cross entropy; requests are valid
// (kernels/ops/token_ops.h).
//
// Ownership: borrows. Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_TOKEN_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_TOKEN_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device_fault.h"
#include "kernels/ops/token_ops.h"

namespace nibble::gpu {

// positions[row]: by index within the document, for rows [first, first + rows) whose sequences are
// `length` long and begin with position `base`.
cudaError_t LaunchPositions(int64_t first, int64_t rows, int64_t length, int64_t base,
                            const int32_t* doc_begin, int32_t* positions, cudaStream_t stream);

// A row with a token or a position out of bounds is reported to `fault` and left unwritten.
// positions: [tokens], null if there are none.
cudaError_t LaunchEmbedding(const EmbeddingForward& request, const int32_t* positions,
                            DeviceFault* fault, cudaStream_t stream);

// Scratch of LaunchAddByKey.
struct KeyScratch {
  uint64_t* sorted = nullptr;  // [SortedKeys(rows)]
  float* partial = nullptr;    // [PartialRows(rows), cols]
};
int64_t SortedKeys(int64_t rows);
int64_t PartialRows(int64_t rows);
// table[keys[r]] += from[r], in ascending order of rows in groups of 64, and then of the groups. A
// key outside [0, bound) is left out and reported.
cudaError_t LaunchAddByKey(const ConstMatrix& from, const int32_t* keys, int64_t bound,
                           float* table, const KeyScratch& scratch, DeviceFault* fault,
                           cudaStream_t stream);

// A target out of bounds is reported, and its row gets loss 0 and gradient 0.
cudaError_t LaunchCrossEntropy(const CrossEntropy& request, DeviceFault* fault,
                               cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_TOKEN_KERNELS_H_
