#include "server/state/persistent.h"

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace nibble {
namespace {

using Map = PersistentMap<int, std::string>;
using Reference = std::map<int, std::string>;

Reference Contents(const Map& map) {
  Reference contents;
  for (const auto& [key, value] : map) contents.emplace(key, value);
  return contents;
}

TEST(PersistentTest, AMapEqualsAStdMapAndItsCopiesAreSnapshots) {
  std::mt19937 random(7);
  Map map;
  Reference reference;
  std::vector<std::pair<Map, Reference>> copies;
  for (int i = 0; i < 20'000; ++i) {
    const int key = static_cast<int>(random() % 600);
    if (random() % 5 < 2) {
      EXPECT_EQ(map.Erase(key), reference.erase(key) == 1);
    } else {
      map.Put(key, std::to_string(i));
      reference[key] = std::to_string(i);
    }
    ASSERT_EQ(map.size(), reference.size());
    if (i % 500 == 0) copies.emplace_back(map, reference);
  }
  copies.emplace_back(map, reference);
  for (const auto& [copy, then] : copies) {
    ASSERT_EQ(Contents(copy), then);
    for (int key = -1; key <= 600; ++key) {
      const auto exact = then.find(key);
      const auto lower = then.lower_bound(key);
      const auto upper = then.upper_bound(key);
      EXPECT_EQ(copy.contains(key), exact != then.end());
      EXPECT_EQ(copy.find(key) == copy.end(), exact == then.end());
      EXPECT_EQ(copy.lower_bound(key) == copy.end(), lower == then.end());
      if (lower != then.end()) {
        EXPECT_EQ(copy.lower_bound(key)->second, lower->second);
      }
      EXPECT_EQ(copy.upper_bound(key) == copy.end(), upper == then.end());
      if (upper != then.end()) {
        EXPECT_EQ(copy.upper_bound(key)->first, upper->first);
      }
    }
  }
}

TEST(PersistentTest, ACopySharesEveryEntryThatHasNotChangedSince) {
  PersistentMap<int, std::unique_ptr<int>> map;
  for (int i = 0; i < 1000; ++i) map.Put(i, std::make_unique<int>(i));
  const auto copy = map;
  map.Put(500, std::make_unique<int>(-1));
  map.Erase(10);
  int shared = 0;
  for (const auto& [key, value] : copy) {
    const auto* const now = map.Find(key);
    if (now != nullptr) shared += now->second.get() == value.get() ? 1 : 0;
  }
  EXPECT_EQ(shared, 998);
}

TEST(PersistentTest, AnEntryIsFreedWithTheLastCopyThatHasIt) {
  const auto counted = std::make_shared<int>(1);
  PersistentMap<int, std::shared_ptr<int>> map;
  for (int i = 0; i < 100; ++i) map.Put(i, counted);
  auto copy = std::make_unique<PersistentMap<int, std::shared_ptr<int>>>(map);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(map.Erase(i));
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(counted.use_count(), 101);
  copy.reset();
  EXPECT_EQ(counted.use_count(), 1);
}

TEST(PersistentTest, CopiesAreReadAndDestroyedInOtherThreadsWhileOneIsChanged) {
  Map map;
  for (int i = 0; i < 500; ++i) map.Put(i, "0");
  std::vector<std::thread> readers;
  for (int round = 1; round <= 40; ++round) {
    for (int i = 0; i < 500; i += 7) map.Put(i, std::to_string(round));
    readers.emplace_back([copy = map, round] {
      for (int i = 0; i < 500; i += 7) EXPECT_EQ(copy.Find(i)->second, std::to_string(round));
      EXPECT_EQ(copy.size(), 500u);
    });
  }
  for (std::thread& reader : readers) reader.join();
}

TEST(PersistentTest, InsertionInOrderMakesABalancedTree) {
  PersistentSet<int64_t, std::greater<>> set;
  constexpr int64_t kMany = 200'000;  // deeper than any path array if the tree were a list
  for (int64_t i = 0; i < kMany; ++i) set.Insert(i);
  int64_t expected = kMany;
  for (const int64_t key : set) EXPECT_EQ(key, --expected);
  EXPECT_EQ(*set.upper_bound(100), 99);
}

}  // namespace
}  // namespace nibble
