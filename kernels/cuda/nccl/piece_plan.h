// How a reduce-scatter in rank order is cut into pieces: while one piece is summed, the next is
// received. Every rank must cut in the same way, so a plan depends on nothing but the world and the
// size.
//
// Thread-safety: pure.
#ifndef NIBBLE_KERNELS_CUDA_NCCL_PIECE_PLAN_H_
#define NIBBLE_KERNELS_CUDA_NCCL_PIECE_PLAN_H_

#include <algorithm>
#include <cstdint>

namespace nibble {

// Of a slice of `count` elements, FP32, which every rank receives from every other rank.
struct PiecePlan {
  int64_t count = 0;
  int64_t piece = 0;   // elements; the last piece may be shorter
  int64_t pieces = 0;  // at least 1
  int64_t slots = 0;   // pieces that are received or summed at a time; piece p uses slot p % slots
  int64_t stride = 0;  // from one rank's elements to the next one's, within a slot
  int64_t slot_elements = 0;  // of a slot: [world - 1, stride]

  int64_t first(int64_t p) const { return p * piece; }
  int64_t elements(int64_t p) const { return std::min(piece, count - first(p)); }
  int64_t scratch_elements() const { return slots * slot_elements; }
};

// Pieces begin at multiples of 4 KiB, so that 16-byte accesses stay aligned.
inline constexpr int64_t kPieceAlign = 1024;
// A piece's sum should take longer than the launches that it adds: 16 MiB.
inline constexpr int64_t kLeastPiece = int64_t{4} << 20;
inline constexpr int64_t kMostPieces = 8;  // unless the scratch limits the size of a piece
// 256 MiB, or two pieces of 4 KiB per peer if that is more.
inline constexpr int64_t kMostScratch = int64_t{64} << 20;

// `world`: at least 1; `count`: at least 1.
inline PiecePlan PlanPieces(int world, int64_t count) {
  constexpr auto kUp = [](int64_t n) { return (n + kPieceAlign - 1) / kPieceAlign * kPieceAlign; };
  PiecePlan plan = {.count = count, .piece = count, .pieces = 1, .slots = 1};
  const int64_t peers = world - 1;
  if (peers > 0) {
    const int64_t most =
        std::max(kPieceAlign, kMostScratch / (2 * peers) / kPieceAlign * kPieceAlign);
    const int64_t wanted = std::max(kLeastPiece, kUp((count + kMostPieces - 1) / kMostPieces));
    plan.piece = std::min({wanted, most, count});
    plan.pieces = (count + plan.piece - 1) / plan.piece;
    plan.slots = std::min<int64_t>(2, plan.pieces);
  }
  plan.stride = kUp(plan.piece);
  plan.slot_elements = peers * plan.stride;
  return plan;
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_NCCL_PIECE_PLAN_H_
