#include "kernels/cpu/layers/blocks.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace nibble::cpu {
namespace {

TEST(BlocksTest, CoverTheRangeOnce) {
  for (const int64_t total : {0, 1, 7, 128, 129, 1000}) {
    for (const int64_t size : {1, 7, 128}) {
      const Blocks blocks{total, size};
      int64_t next = 0;
      for (int64_t i = 0; i < blocks.count(); ++i) {
        EXPECT_EQ(blocks.begin(i), next);
        EXPECT_GT(blocks.end(i), blocks.begin(i));
        next = blocks.end(i);
      }
      EXPECT_EQ(next, total);
    }
  }
}

TEST(BlocksTest, RowBlocksHaveAboutTheGivenElementsAndAtLeastOneRow) {
  EXPECT_EQ(RowBlocks(100, 10, 55).size, 5);
  EXPECT_EQ(RowBlocks(100, 1000, 55).size, 1);
  EXPECT_EQ(RowBlocks(100, 0, 55).count(), 2);
}

TEST(BlocksTest, SumBlocksAreAtMost256) {
  EXPECT_EQ(SumBlocks(1).count(), 1);
  EXPECT_EQ(SumBlocks(129).count(), 2);
  for (const int64_t rows : {32768, 32769, 1000003}) EXPECT_LE(SumBlocks(rows).count(), 256);
}

TEST(PatchesTest, CoverEveryElementOnce) {
  for (const auto& [rows, cols] : {std::pair{1, 1000}, {37, 5}, {9, 64}, {3, 129}, {0, 5}}) {
    std::vector<int> seen(rows * cols);
    const Patches patches(rows, cols, 64);
    for (int64_t i = 0; i < patches.count(); ++i) {
      const BlockPatch patch = patches.at(i);
      for (int64_t row = patch.row; row < patch.row_end; ++row) {
        for (int64_t col = patch.col; col < patch.col_end; ++col) ++seen[row * cols + col];
      }
    }
    EXPECT_EQ(seen, std::vector<int>(rows * cols, 1));
  }
}

}  // namespace
}  // namespace nibble::cpu
