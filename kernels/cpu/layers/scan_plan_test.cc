#include "kernels/cpu/layers/scan_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/cpu/layers/mamba_testing.h"

namespace nibble::cpu {
namespace {

using testing::ElementsAre;

std::vector<int32_t> First(const ScanPlan& plan, int64_t i) {
  return {plan.first(i), plan.first(i) + plan.padded()};
}
std::vector<int32_t> End(const ScanPlan& plan, int64_t i) {
  return {plan.end(i), plan.end(i) + plan.padded()};
}

TEST(ScanPlanTest, DocumentContinuesThroughAllChunksOfItsSequence) {
  ScanPlan plan;
  plan.Reset({.sequences = 2, .length = 10}, 4);
  EXPECT_EQ(plan.count(), 6);
  EXPECT_EQ(plan.chunks_per_sequence(), 3);
  EXPECT_EQ(plan.tokens(), 4);
  EXPECT_EQ(plan.padded(), 16);
  for (int64_t i = 0; i < 6; ++i) {
    const ScanChunk& chunk = plan.chunk(i);
    const bool first = i % 3 == 0, last = i % 3 == 2;
    EXPECT_EQ(chunk.row, i / 3 * 10 + i % 3 * 4);
    EXPECT_EQ(chunk.tokens, last ? 2 : 4);
    EXPECT_EQ(chunk.entering, first ? 0 : chunk.tokens);
    EXPECT_EQ(chunk.carries(), !first);
    EXPECT_EQ(chunk.last_doc, 0);
    EXPECT_EQ(plan.followed(i), !last);
  }
}

TEST(ScanPlanTest, DocumentsInsideAChunkAreIndependent) {
  const std::vector<int32_t> begins = DocBegins({{6, 7}}, 8);
  ScanPlan plan;
  plan.Reset({.sequences = 1, .length = 8, .doc_begin = begins.data()}, 4);
  EXPECT_EQ(plan.chunk(1).entering, 2);
  EXPECT_EQ(plan.chunk(1).last_doc, 3);
  EXPECT_FALSE(plan.chunk(1).carries());
  EXPECT_THAT(First(plan, 1), ElementsAre(0, 0, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3));
  EXPECT_THAT(End(plan, 1), ElementsAre(2, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4));
  EXPECT_TRUE(plan.followed(0));
}

TEST(ScanPlanTest, DocumentThatBeginsWithAChunkIgnoresTheEnteringState) {
  const std::vector<int32_t> begins = DocBegins({{4}}, 8);
  ScanPlan plan;
  plan.Reset({.sequences = 1, .length = 8, .doc_begin = begins.data()}, 4);
  EXPECT_EQ(plan.chunk(1).entering, 0);
  EXPECT_EQ(plan.chunk(1).last_doc, 0);
  EXPECT_FALSE(plan.followed(0));
}

TEST(ScanPlanTest, ChunkLongerThanTheSequenceIsTheSequence) {
  ScanPlan plan;
  plan.Reset({.sequences = 3, .length = 20}, 128);
  EXPECT_EQ(plan.count(), 3);
  EXPECT_EQ(plan.tokens(), 20);
  EXPECT_EQ(plan.padded(), 32);
}

}  // namespace
}  // namespace nibble::cpu
