// Launches of the rotary position kernels: rotations of q and k in place, and the table of cosines
// and sines that they read.
//
// Ownership: borrows. Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ROPE_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_ROPE_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::gpu {

// Rows [row, row + rows) are consecutive tokens of one sequence, at positions from `position` on.
struct RopePiece {
  int64_t row;
  int64_t rows;
  int64_t position;
};
// A launch takes this number of pieces by value.
inline constexpr int kRopePieces = 64;
struct RopePieces {
  int count;  // 0: whole sequences
  RopePiece piece[kRopePieces];
};

struct RopeArgs {
  void* qkv;  // [tokens, stride] bf16 or f32
  int64_t stride;
  bool f32;
  int64_t rows;              // of whole sequences
  int64_t length;            // tokens per whole sequence
  int heads;                 // that are rotated: query and key heads
  int half;                  // head_dim / 2
  const int32_t* doc_begin;  // [tokens]; null: zeros
  const float* cosines;      // [positions, half]
  const float* sines;        // [positions, half]
  bool inverse;
};

cudaError_t LaunchRope(const RopeArgs& args, const RopePieces& pieces, cudaStream_t stream);

// Positions [0, positions): position p, pair i: angle p · theta^(−i/half), computed in FP64.
cudaError_t LaunchRopeTable(float* cosines, float* sines, int64_t positions, int half, double theta,
                            cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ROPE_KERNELS_H_
