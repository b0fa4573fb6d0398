#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/formats/bfloat16.h"
#include "kernels/gemm/tile_loops.h"
#include "kernels/gemm/tile_plan.h"

namespace nibble::cpu {
namespace {

TEST(TilePlan, CoversEveryElementOnce) {
  for (const TileLimits& limits : {kFp32Tiles, kBf16Tiles, kSlicedTiles}) {
    for (const int64_t m : {1, 7, 8, 100, 1025, 3000}) {
      for (const int64_t n : {1, 47, 48, 49, 1056, 2500}) {
        for (const int64_t k : {1, 64, 5000}) {
          const TilePlan plan = PlanTiles(m, n, k, limits);
          std::vector<int> covered(m * n);
          for (int64_t i = 0; i < plan.tiles(); ++i) {
            const Tile tile = plan.At(i);
            ASSERT_GT(tile.rows, 0);
            ASSERT_GT(tile.cols, 0);
            for (int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
              for (int64_t col = tile.col; col < tile.col + tile.cols; ++col) {
                ++covered[row * n + col];
              }
            }
          }
          for (const int count : covered) ASSERT_EQ(count, 1);
        }
      }
    }
  }
}

TEST(TilePlan, LargeGemmsHaveAtLeastSixteenTilesAndTinyOnesOne) {
  EXPECT_GE(PlanTiles(4096, 4096, 1024, kFp32Tiles).tiles(), 16);
  EXPECT_GE(PlanTiles(1024, 1024, 4096, kFp32Tiles).tiles(), 16);
  EXPECT_GE(PlanTiles(512, 512, 512, kFp32Tiles).tiles(), 16);
  EXPECT_GE(PlanTiles(8, 50000, 1024, kFp32Tiles).tiles(), 16);
  EXPECT_GE(PlanTiles(256, 256, 256, kFp32Tiles).tiles(), 2);
  EXPECT_EQ(PlanTiles(64, 64, 64, kFp32Tiles).tiles(), 1);
}

// Odd lengths, so that both whole vectors and remainders occur.
TEST(TileLoops, EveryInstructionSetGivesTheSameBits) {
  constexpr int64_t kCount = 16 * 5 + 13;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> acc(kCount), scales(kCount), c(kCount);
  std::vector<uint16_t> c16(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    acc[i] = i % 31 == 5 ? NAN : normal(random);
    scales[i] = normal(random);
    c[i] = normal(random);
    c16[i] = EncodeBf16(normal(random));
  }
  for (int isa = 0; isa < TileLoopsCount(); ++isa) {
    const TileLoops& loops = TileLoopsAt(isa);
    std::vector<float> widened(kCount);
    loops.widen(c16.data(), kCount, widened.data());
    for (int64_t i = 0; i < kCount; ++i) EXPECT_EQ(widened[i], DecodeBf16(c16[i]));
    for (const bool more : {false, true}) {
      std::vector<float> sums = c, results = c;
      std::vector<uint16_t> results16 = c16;
      loops.add_scaled(acc.data(), 0.3f, scales.data(), kCount, !more, sums.data());
      loops.finish_f32(acc.data(), 0.7f, 0.3f, scales.data(), kCount, more, results.data());
      loops.finish_bf16(acc.data(), 0.7f, 0.3f, scales.data(), kCount, more, results16.data());
      for (int64_t i = 0; i < kCount; ++i) {
        const float sum = (acc[i] * 0.3f) * scales[i];
        const float result = ((acc[i] * 0.7f) * 0.3f) * scales[i];
        const float result32 = more ? result + c[i] : result;
        const float result16 = more ? result + DecodeBf16(c16[i]) : result;
        EXPECT_EQ(EncodeBf16(result16), results16[i]) << "isa " << isa << " element " << i;
        if (std::isnan(acc[i])) {
          EXPECT_TRUE(std::isnan(sums[i]) && std::isnan(results[i]));
          continue;
        }
        EXPECT_EQ(more ? c[i] + sum : sum, sums[i]) << "isa " << isa << " element " << i;
        EXPECT_EQ(result32, results[i]) << "isa " << isa << " element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace nibble::cpu
