#include "kernels/cuda/nccl/piece_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace nibble {
namespace {

void ExpectSound(int world, int64_t count) {
  SCOPED_TRACE(testing::Message() << "world " << world << ", count " << count);
  const PiecePlan plan = PlanPieces(world, count);
  // The pieces cover the slice once, in order.
  int64_t next = 0;
  for (int64_t p = 0; p < plan.pieces; ++p) {
    ASSERT_EQ(plan.first(p), next);
    ASSERT_GT(plan.elements(p), 0);
    ASSERT_LE(plan.elements(p), plan.piece);
    if (p + 1 < plan.pieces) {
      ASSERT_EQ(plan.elements(p), plan.piece);
    }
    next += plan.elements(p);
  }
  ASSERT_EQ(next, count);
  // Aligned, apart from the sizes that the caller chose.
  if (plan.pieces > 1) {
    ASSERT_EQ(plan.piece % kPieceAlign, 0);
  }
  ASSERT_EQ(plan.stride % kPieceAlign, 0);
  ASSERT_GE(plan.stride, plan.piece);
  ASSERT_EQ(plan.slot_elements, (world - 1) * plan.stride);
  // A piece is received while the one before is summed, in memory of a bounded size.
  ASSERT_EQ(plan.slots, plan.pieces > 1 ? 2 : 1);
  ASSERT_LE(plan.scratch_elements(),
            std::max(kMostScratch + 2 * (world - 1) * kPieceAlign, 2 * (world - 1) * kPieceAlign));
  if (plan.pieces > kMostPieces) {
    ASSERT_GT(2 * (world - 1) * (plan.piece + kPieceAlign), kMostScratch)
        << "more pieces than the memory asks for";
  }
}

TEST(PiecePlanTest, PiecesCoverEverySizeInBoundedMemory) {
  std::mt19937_64 random(7);
  for (const int world : {1, 2, 3, 4, 7, 8, 16, 64, 512, 1024}) {
    for (const int64_t count :
         {int64_t{1}, int64_t{3}, kPieceAlign, kLeastPiece - 1, kLeastPiece, kLeastPiece + 1,
          kMostPieces * kLeastPiece, kMostScratch, kMostScratch + 1, int64_t{1} << 31}) {
      ExpectSound(world, count);
    }
    for (int i = 0; i < 200; ++i) {
      const int bits = 1 + static_cast<int>(random() % 33);
      ExpectSound(world, 1 + static_cast<int64_t>(random() % (uint64_t{1} << bits)));
    }
  }
}

TEST(PiecePlanTest, SmallSizesAreOnePiece) {
  EXPECT_EQ(PlanPieces(2, kLeastPiece).pieces, 1);
  EXPECT_EQ(PlanPieces(2, kLeastPiece + 1).pieces, 2);
  EXPECT_EQ(PlanPieces(1, int64_t{1} << 33).pieces, 1);  // nothing is received
  EXPECT_EQ(PlanPieces(1, int64_t{1} << 33).scratch_elements(), 0);
}

TEST(PiecePlanTest, LargeSizesAreEightPieces) {
  EXPECT_EQ(PlanPieces(2, int64_t{128} << 20).pieces, kMostPieces);
  // Of four ranks' gibibyte, each receives 256 MiB from three others.
  EXPECT_EQ(PlanPieces(4, int64_t{64} << 20).pieces, kMostPieces);
}

}  // namespace
}  // namespace nibble
