#include "kernels/cuda/gemm/scale_tiles.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::gpu {
namespace {

// cuBLAS 13 manual, "1D Block Scaling Factors Layout":
//   offset in a tile = (outer % 32) * 16 + (outer / 32) * 4 + inner
//   offset of the tile with corner (sf_outer, sf_inner) = (sf_inner + sf_outer * sf_inner_dim) *
//   128
// with outer and inner relative to the tile, sf_outer counted in tiles and sf_inner in scales.
int64_t Published(int64_t line, int64_t block, int64_t padded_blocks) {
  const int64_t outer = line % 128, inner = block % 4;
  const int64_t in_tile = (outer % 32) * 16 + (outer / 32) * 4 + inner;
  return (block / 4 * 4 + line / 128 * padded_blocks) * 128 + in_tile;
}

TEST(ScaleTiles, FollowThePublishedFormula) {
  for (const int64_t blocks : {1, 3, 4, 5, 12, 129}) {
    const int64_t padded = (blocks + 3) / 4 * 4;
    for (int64_t line = 0; line < 400; ++line) {
      for (int64_t block = 0; block < blocks; ++block) {
        ASSERT_EQ(ScaleTileOffset(line, block, blocks), Published(line, block, padded))
            << line << ", " << block << " of " << blocks;
      }
    }
  }
}

// The first rows of the manual's figure of a tile.
TEST(ScaleTiles, ATileStartsWithLines0And32And64And96) {
  EXPECT_EQ(ScaleTileOffset(0, 0, 4), 0);
  EXPECT_EQ(ScaleTileOffset(0, 3, 4), 3);
  EXPECT_EQ(ScaleTileOffset(32, 0, 4), 4);
  EXPECT_EQ(ScaleTileOffset(64, 0, 4), 8);
  EXPECT_EQ(ScaleTileOffset(96, 3, 4), 15);
  EXPECT_EQ(ScaleTileOffset(1, 0, 4), 16);
  EXPECT_EQ(ScaleTileOffset(127, 3, 4), 511);
  EXPECT_EQ(ScaleTileOffset(0, 4, 8), 512);
  EXPECT_EQ(ScaleTileOffset(128, 0, 8), 1024);
}

TEST(ScaleTiles, EveryByteHasOnePlace) {
  for (const int64_t lines : {1, 128, 129, 300}) {
    for (const int64_t blocks : {1, 4, 6, 33}) {
      const int64_t bytes = ScaleTilesBytes(lines, blocks);
      ASSERT_EQ(bytes % kScaleTileBytes, 0);
      std::vector<int> seen(static_cast<size_t>(bytes), 0);
      for (int64_t line = 0; line < PaddedScaleLines(lines); ++line) {
        for (int64_t block = 0; block < PaddedScaleBlocks(blocks); ++block) {
          const int64_t offset = ScaleTileOffset(line, block, blocks);
          ASSERT_GE(offset, 0);
          ASSERT_LT(offset, bytes);
          ++seen[static_cast<size_t>(offset)];
          const ScalePlace place = ScalePlaceOf(offset, blocks);
          ASSERT_EQ(place.line, line);
          ASSERT_EQ(place.block, block);
        }
      }
      for (const int count : seen) ASSERT_EQ(count, 1);
    }
  }
}

}  // namespace
}  // namespace nibble::gpu
