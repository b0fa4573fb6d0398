#include "worker/agent/shard_news.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace nibble {
namespace {

std::vector<v1::ShardReport> Shards(int count) {
  std::vector<v1::ShardReport> shards(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) shards[static_cast<size_t>(i)].set_rank(i);
  return shards;
}

TEST(ShardNewsTest, TheFirstReportOfAStreamNamesThem) {
  ShardNews news;
  EXPECT_TRUE(news.AreToBeNamed(1, Shards(2)));
  EXPECT_FALSE(news.AreToBeNamed(2, Shards(2)));
  EXPECT_TRUE(news.AreToBeNamed(1, Shards(2)));
}

TEST(ShardNewsTest, NoneIsAnAnswerToo) {
  ShardNews news;
  EXPECT_TRUE(news.AreToBeNamed(1, {}));
  EXPECT_FALSE(news.AreToBeNamed(2, {}));
}

TEST(ShardNewsTest, WhatHasComeOrGoneIsNamed) {
  ShardNews news;
  EXPECT_TRUE(news.AreToBeNamed(1, Shards(2)));
  EXPECT_TRUE(news.AreToBeNamed(2, Shards(3)));
  EXPECT_FALSE(news.AreToBeNamed(3, Shards(3)));
  EXPECT_TRUE(news.AreToBeNamed(4, Shards(2)));
  EXPECT_TRUE(news.AreToBeNamed(5, {}));
}

TEST(ShardNewsTest, WhatIsDroppedAndThereAgainIsNamed) {
  ShardNews news;
  EXPECT_TRUE(news.AreToBeNamed(1, Shards(2)));
  news.Dropped();
  EXPECT_TRUE(news.AreToBeNamed(2, Shards(2)));
}

TEST(ShardNewsTest, NowAndThenTheyAreNamedAgain) {
  ShardNews news;
  int named = 0;
  for (int64_t number = 1; number <= 10 * ShardNews::kEvery; ++number) {
    named += news.AreToBeNamed(number, Shards(2));
  }
  EXPECT_EQ(named, 10);
}

}  // namespace
}  // namespace nibble
