// Launches of the kernels behind CudaMambaOps: the depthwise causal convolution, the chunked
// state-space scan, and both token by token for decoding.
//
// Ownership: arguments borrow device memory until the kernels have run. Launches enqueue and
// return; the caller has checked the shapes. Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::gpu {

// ---- Convolution of whole sequences ------------------------------------------------------------

struct ConvArgs {
  int64_t sequences, length;  // rows s·length … of every matrix are sequence s
  int64_t channels;
  int width;
  bool f32;                  // type of the matrices; otherwise BF16
  const int32_t* doc_begin;  // [tokens], or null: zeros
  const float* weight;       // [channels, width]
  const float* bias;         // [channels]
  const void* in;            // [tokens, channels], rows in_stride elements apart
  int64_t in_stride;
  void* out;  // forward: [tokens, channels]; backward: din
  int64_t out_stride;
  // Backward.
  const void* dout;  // [tokens, channels]
  int64_t dout_stride;
  float* partial;  // [ConvRowBlocks(), width + 1, channels] scratch: sums of a block of rows
  float* dweight;  // [channels, width] added to
  float* dbias;    // [channels] added to
};
// The number of blocks of rows whose sums the backward pass stores.
int64_t ConvRowBlocks(int64_t sequences, int64_t length);
cudaError_t LaunchConvForward(const ConvArgs& args, cudaStream_t stream);
cudaError_t LaunchConvBackward(const ConvArgs& args, cudaStream_t stream);

// ---- Decoding: tokens that continue sequences --------------------------------------------------

// Rows [row, row + rows) continue a sequence whose window or state is `state`.
struct Piece {
  int64_t row, rows;
  float* state;
};
inline constexpr int kPiecesPerLaunch = 64;
struct Pieces {
  int count;
  Piece piece[kPiecesPerLaunch];
};
// window: [width − 1, channels] in, out. `args` has no sequences.
cudaError_t LaunchConvTokens(const ConvArgs& args, const Pieces& pieces, cudaStream_t stream);

struct ScanTokensArgs {
  int heads, head_dim, groups, state;
  bool f32;
  const float *dt_bias, *a_log, *d;  // [heads]
  const void *xbc, *dt;              // [tokens, xbc columns], [tokens, heads]
  int64_t xbc_stride, dt_stride;
  void* y;  // [tokens, heads · head_dim]
  int64_t y_stride;
};
// state: [heads, state, head_dim] in, out. The result of a token does not depend on how the tokens
// are divided into requests.
cudaError_t LaunchScanTokens(const ScanTokensArgs& args, const Pieces& pieces, cudaStream_t stream);

// ---- The scan of whole sequences ---------------------------------------------------------------

// Tokens per chunk. A request's own chunk is a hint that the kernels do not need.
inline constexpr int kScanChunk = 128;

// How documents connect the tokens of a chunk with the neighbouring chunks.
struct ScanChunkInfo {
  int tokens;
  int entering;  // number of first tokens that depend on the state that enters the chunk
  int last_doc;  // tokens from this one on contribute to the state that leaves the chunk
  int followed;  // whether the next chunk begins with tokens that depend on that state
};

// Exponents of one head in one chunk: arrays of kScanChunk. s: the sum of Δ A log2(e) over the
// chunk's tokens up to and including one; d: the same from the beginning of its block of 16 tokens.
// Tokens beyond the chunk's last one have Δ 0.
struct ScanDecays {
  static constexpr int kDelta = 0;
  static constexpr int kHigh = 1;   // d
  static constexpr int kLow = 2;    // the rounding error of kHigh
  static constexpr int kEnter = 3;  // 2^s
  static constexpr int kLeave = 4;  // 2^(s of the last token − s) Δ
  static constexpr int kArrays = 5;
};

// Sums per token of one head, from the backward pass: arrays of kScanChunk. W_ij is the
// pair's contribution to the gradient of the decay between tokens j and i.
struct ScanTokenSums {
  static constexpr int kBalance = 0;  // Σ_{i>k} W_ik − Σ_{j<k} W_kj + f_k
  static constexpr int kDelta = 1;    // x_k · du_k
  static constexpr int kEntered = 2;  // e_k
  static constexpr int kArrays = 3;
};
struct ScanHeadSums {
  float carried;  // gradient of the decay over the whole chunk
  float dd;
};
struct ScanTotals {
  double ddt, da_log, dd;
};

// A lane is a head or, if heads are wider than a tile, one of their `slices` of `slice_cols`
// columns, which share dt and whose sums are added. A lane's tiles have `tile_cols` columns and
// states of `tile_state`; columns that a lane lacks are zeros.
struct ScanArgs {
  int heads, head_dim, groups, state;
  int slices, slice_cols, lanes;  // lanes = heads · slices
  int tile_cols, tile_state;
  int64_t sequences, length;
  int chunks_per_sequence;
  const int32_t* doc_begin;          // [tokens], or null: zeros
  const float *dt_bias, *a_log, *d;  // [heads]
  // Rows are `…_stride` elements apart. The tile kernels take BF16, with rows of all but dt and ddt
  // at multiples of 16 bytes.
  bool f32;
  const void* xbc;  // [tokens, heads · head_dim + 2 · groups · state]
  int64_t xbc_stride;
  const void* dt;  // [tokens, heads]
  int64_t dt_stride;
  void* y;  // forward: [tokens, heads · head_dim]
  int64_t y_stride;
  // Backward.
  const void* dy;  // [tokens, heads · head_dim]
  int64_t dy_stride;
  void* dxbc;  // [tokens, columns of xbc]
  int64_t dxbc_stride;
  void* ddt;  // [tokens, heads]
  int64_t ddt_stride;
  // Scratch.
  ScanChunkInfo* chunks;  // [chunks]
  float* decays;          // [chunks, heads, ScanDecays::kArrays, kScanChunk]
  // The states that enter the chunks and the gradients of those that leave them. Tile kernels: BF16
  // [chunks, lanes, tile_cols, tile_state]. Simple kernels: FP32 [chunks, heads, state, head_dim].
  void* states;
  void* gradients;
  // Hopper's backward: BF16 [chunks, groups, 3, 64, 64], sums over lanes (scan_hopper.cuh).
  void* pairs;
  // Simple backward.
  float* group_sums;  // [tokens, 2 · groups · state], sums of dB | dC over heads
  double* balances;   // [chunks, heads, kScanChunk], in place of ScanTokenSums::kBalance; or null
  float* token_sums;  // [chunks, lanes, ScanTokenSums::kArrays, kScanChunk]
  ScanHeadSums* head_sums;  // [chunks, lanes]
  ScanTotals* totals;       // [chunks, heads]

  int64_t chunk_count() const { return sequences * chunks_per_sequence; }
};

// Tiles that have kernels; the first in this order that holds a slice is used. What no tile holds,
// and FP32, takes the simple kernels.
struct ScanTile {
  int cols, state;
};
inline constexpr ScanTile kScanTiles[] = {{32, 64}, {64, 64}, {64, 128}, {80, 128}};

// Exponents and documents of every chunk.
cudaError_t LaunchScanDecays(const ScanArgs& args, cudaStream_t stream);
// The states that enter every chunk; with `gradients`, also the gradients of those that leave.
cudaError_t LaunchScanStates(const ScanArgs& args, bool gradients, cudaStream_t stream);
// y, from the states.
cudaError_t LaunchScanForward(const ScanArgs& args, cudaStream_t stream);
// dxbc and the sums per token, from the states and their gradients.
cudaError_t LaunchScanBackward(const ScanArgs& args, cudaStream_t stream);
// The same on Hopper, for some tiles; the backward pass in two launches, dx and the pairs of
// tokens, and then, from these, dB, dC and what is carried from chunk to chunk.
constexpr bool HopperTakesScan(const ScanTile& tile) {
  return tile.cols == 64 && tile.state == 128;
}
cudaError_t LaunchScanHopperStates(const ScanArgs& args, bool gradients, cudaStream_t stream);
cudaError_t LaunchScanHopperForward(const ScanArgs& args, cudaStream_t stream);
cudaError_t LaunchScanHopperPairs(const ScanArgs& args, cudaStream_t stream);
cudaError_t LaunchScanHopperGroups(const ScanArgs& args, cudaStream_t stream);
// The same as the tile kernels without tensor cores, for any shape, type and alignment: lanes are
// heads.
cudaError_t LaunchScanSimpleStates(const ScanArgs& args, bool gradients, cudaStream_t stream);
cudaError_t LaunchScanSimpleForward(const ScanArgs& args, cudaStream_t stream);
cudaError_t LaunchScanSimpleBackward(const ScanArgs& args, cudaStream_t stream);
// ddt and the totals per chunk, from the sums per token.
cudaError_t LaunchScanTokenGradients(const ScanArgs& args, cudaStream_t stream);
// Adds the totals of `chunks` chunks to the gradients of the parameters, [heads] each.
cudaError_t LaunchScanTotals(const ScanTotals* totals, int64_t chunks, int heads, float* ddt_bias,
                             float* da_log, float* dd, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_KERNELS_H_
