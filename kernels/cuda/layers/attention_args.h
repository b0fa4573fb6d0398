// Arguments of the attention kernels, as plain numbers and pointers.
//
// Ownership: borrows. Thread-safety: values.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_ARGS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_ARGS_H_

#include <cstdint>

namespace nibble::gpu {

// Queries and keys per tile of the kernels; the padded length of a sequence is a multiple of it.
inline constexpr int kTokenTile = 128;

struct AttentionDims {
  int heads;
  int kv_heads;
  int head_dim;
  int length;         // tokens per sequence
  int64_t sequences;  // tokens = sequences · length
  float scale;        // of q·k

#if defined(__CUDACC__)
  __host__ __device__
#endif
      int64_t
      padded() const {
    return (int64_t{length} + kTokenTile - 1) / kTokenTile * kTokenTile;
  }
};

// Part of a sequence in a cache: its rows of the request, and the keys before them.
struct CachedPiece {
  int64_t row;
  int64_t position;  // keys before the first row
  int rows;
  int64_t capacity;  // tokens that the caches have room for
  void* keys;        // [kv_heads, capacity, head_dim], of qkv's type
  void* values;      // [kv_heads, capacity, head_dim]
};
// A launch takes this number of pieces by value.
inline constexpr int kCachedPieces = 32;
struct CachedPieces {
  int count;
  CachedPiece piece[kCachedPieces];
};

struct ForwardArgs {
  AttentionDims dims;
  const uint16_t* qkv;  // [tokens, qkv_stride] bf16: q | k | v
  int64_t qkv_stride;
  uint16_t* out;  // [tokens, out_stride] bf16
  int64_t out_stride;
  float* lse;                // [heads, tokens]; null with caches
  float* amax;               // [1], 0 or more when the kernel starts; null: not wanted
  const int32_t* doc_begin;  // [tokens]; null: zeros
  int* schedule;             // [2] zeros, and zeros again when the kernel has run
};

struct BackwardArgs {
  AttentionDims dims;
  const uint16_t* qkv;  // [tokens, qkv_stride] bf16
  int64_t qkv_stride;
  const uint16_t* out;  // [tokens, out_stride] bf16
  int64_t out_stride;
  const uint16_t* dout;  // [tokens, dout_stride] bf16
  int64_t dout_stride;
  const float* lse;  // [heads, tokens]
  uint16_t* dqkv;    // [tokens, dqkv_stride] bf16
  int64_t dqkv_stride;
  const int32_t* doc_begin;  // [tokens]; null: zeros

  // Scratch, written before it is read.
  float* lse2;          // [sequences, heads, padded()] lse · log2 e; infinity beyond the length
  float* dots;          // [sequences, heads, padded()] Σ out · dout; 0 beyond the length
  int32_t* last_query;  // [tokens] the last token of its sequence that attends to this one
  float* dq_sums;       // [sequences, heads, padded(), head_dim], each tile in fragment order
  int* turns;           // [sequences, heads, padded() / 64] key blocks added to the tile so far
  int* schedule;        // [2] as in ForwardArgs
};

// The numbers of elements of BackwardArgs' scratch; the mma kernels leave dq_sums and turns null.
struct BackwardScratch {
  int64_t rows;  // of lse2 and of dots
  int64_t last_query;
  int64_t dq_sums;
  int64_t turns;
};
inline BackwardScratch ScratchOf(const AttentionDims& dims) {
  const int64_t rows = dims.sequences * dims.heads * dims.padded();
  return {rows, dims.sequences * dims.length, rows * dims.head_dim, rows / 64};
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_ARGS_H_
