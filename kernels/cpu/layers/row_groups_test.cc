#include "kernels/cpu/layers/row_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace nibble::cpu {
namespace {

TEST(RowGroupsTest, KeysHaveTheirRowsInAscendingOrder) {
  RowGroups groups;
  std::mt19937_64 random(1);
  for (const auto& [rows, bound] : {std::pair{1000, 37}, {50, 4000}, {7, 1}, {300, 300}}) {
    std::vector<int32_t> keys(rows);
    std::map<int64_t, std::vector<int32_t>> expected;
    for (int32_t i = 0; i < rows; ++i) {
      keys[i] = static_cast<int32_t>(random() % bound);
      expected[keys[i]].push_back(i);
    }
    groups.Sort(keys.data(), rows, bound);
    ASSERT_EQ(groups.size(), static_cast<int64_t>(expected.size()));
    int64_t i = 0;
    for (const auto& [key, list] : expected) {
      const RowGroups::Group group = groups.at(i++);
      EXPECT_EQ(group.key, key);
      EXPECT_EQ(std::vector<int32_t>(group.rows, group.rows + group.count), list);
    }
  }
}

TEST(RowGroupsTest, RunsCoverEveryGroupOnce) {
  RowGroups groups;
  std::vector<int32_t> keys;
  for (int32_t key = 0; key < 20; ++key) keys.insert(keys.end(), key % 5 * 3, key);
  const int64_t rows = static_cast<int64_t>(keys.size());
  groups.Sort(keys.data(), rows, 20);
  for (const int64_t size : {1, 4, 7, 1000}) {
    int64_t next = 0;
    for (int64_t row = 0; row < rows; row += size) {
      EXPECT_EQ(groups.GroupFrom(row), next);
      next = groups.GroupFrom(std::min(rows, row + size));
    }
    EXPECT_EQ(next, groups.size());
  }
}

TEST(RowGroupsTest, ZeroRowsHaveNoGroups) {
  RowGroups groups;
  groups.Sort(nullptr, 0, 10);
  EXPECT_EQ(groups.size(), 0);
  EXPECT_EQ(groups.GroupFrom(0), 0);
}

}  // namespace
}  // namespace nibble::cpu
