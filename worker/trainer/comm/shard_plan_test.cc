#include "worker/trainer/comm/shard_plan.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace nibble {
namespace {

ShardPlan Plan(const std::vector<int64_t>& sizes, int world) {
  absl::StatusOr<ShardPlan> plan = ShardPlan::Create(sizes, world);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// Walks all pieces of all ranks in order: they must be the flat vector, each element once.
void CheckCover(const std::vector<int64_t>& sizes, int world) {
  SCOPED_TRACE(testing::Message() << sizes.size() << " parameters, world " << world);
  const ShardPlan plan = Plan(sizes, world);
  ASSERT_EQ(plan.shard() % ShardPlan::kAlignment, 0);
  ASSERT_GT(plan.shard(), 0);
  ASSERT_GE(plan.padded(), plan.total());
  // Balanced: no smaller multiple of the alignment would do.
  ASSERT_TRUE(plan.shard() == ShardPlan::kAlignment ||
              (plan.shard() - ShardPlan::kAlignment) * world < plan.total());
  size_t param = 0;
  int64_t done = 0, flat = 0;
  for (int rank = 0; rank < world; ++rank) {
    const ShardPlan::Range range = plan.range(rank);
    ASSERT_EQ(range.begin, rank * plan.shard());
    ASSERT_EQ(range.end, range.begin + plan.shard());
    int64_t offset = 0;
    for (const ShardPlan::Piece& piece : plan.pieces(rank)) {
      while (param < sizes.size() && done == sizes[param]) ++param, done = 0;
      ASSERT_GT(piece.count, 0);
      ASSERT_EQ(piece.param, static_cast<int>(param));
      ASSERT_EQ(piece.begin, done);
      ASSERT_EQ(piece.offset, offset);
      ASSERT_EQ(plan.offset(piece.param) + piece.begin, flat);
      ASSERT_EQ(plan.owner(flat), rank);
      ASSERT_EQ(plan.owner(flat + piece.count - 1), rank);
      done += piece.count;
      offset += piece.count;
      flat += piece.count;
    }
    ASSERT_EQ(offset, range.used);
  }
  ASSERT_EQ(flat, plan.total());
}

TEST(ShardPlanTest, EveryElementIsOwnedOnce) {
  std::mt19937_64 random(1);
  for (const int world : {1, 2, 3, 4, 7, 8, 64}) {
    CheckCover({}, world);
    CheckCover({0}, world);
    CheckCover({1}, world);
    CheckCover({64}, world);
    CheckCover({0, 65, 0, 0, 1, 0}, world);
    CheckCover(std::vector<int64_t>(100, 1), world);
    CheckCover({int64_t{1} << 40, 3, int64_t{1} << 35}, world);
    for (int i = 0; i < 200; ++i) {
      std::vector<int64_t> sizes(random() % 40);
      const int64_t most = int64_t{1} << (random() % 20);
      for (int64_t& size : sizes) size = random() % (most + 1);
      CheckCover(sizes, world);
    }
  }
}

TEST(ShardPlanTest, PiecesSayWhereAParameterIsCut) {
  const ShardPlan plan = Plan({100, 50, 90}, 2);  // 240 elements, shards of 128
  EXPECT_EQ(plan.shard(), 128);
  EXPECT_EQ(plan.padded(), 256);
  EXPECT_EQ(plan.pieces(0), (std::vector<ShardPlan::Piece>{{0, 0, 100, 0}, {1, 0, 28, 100}}));
  EXPECT_EQ(plan.pieces(1), (std::vector<ShardPlan::Piece>{{1, 28, 22, 0}, {2, 0, 90, 22}}));
  EXPECT_EQ(plan.range(1).used, 112);
}

TEST(ShardPlanTest, LastRanksOfASmallModelOwnPadding) {
  const ShardPlan plan = Plan({10}, 4);
  EXPECT_EQ(plan.shard(), 64);
  EXPECT_EQ(plan.pieces(0).size(), 1u);
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_TRUE(plan.pieces(rank).empty());
    EXPECT_EQ(plan.range(rank).used, 0);
  }
}

TEST(ShardPlanTest, BadArgumentsAreNamed) {
  const auto message = [](const std::vector<int64_t>& sizes, int world) {
    return std::string(ShardPlan::Create(sizes, world).status().message());
  };
  EXPECT_EQ(message({1}, 0), "world = 0 must be at least 1");
  EXPECT_EQ(message({1, -2}, 1), "parameter 1 has size -2, not in [0, 1152921504606846975]");
  EXPECT_EQ(message({ShardPlan::kMaxElements, 1}, 1), "parameter 1 has size 1, not in [0, 0]");
}

}  // namespace
}  // namespace nibble
