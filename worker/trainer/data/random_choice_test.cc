#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/random_choice.h"

namespace nibble {
namespace {

std::vector<uint64_t> Order(uint64_t size, uint64_t seed, uint32_t stream, uint64_t epoch) {
  const EpochPermutation permutation(size, seed, stream, epoch);
  std::vector<uint64_t> order(size);
  for (uint64_t i = 0; i < size; ++i) order[i] = permutation(i);
  return order;
}

void ExpectPermutation(const std::vector<uint64_t>& order) {
  std::vector<bool> seen(order.size());
  for (const uint64_t x : order) {
    ASSERT_LT(x, order.size()) << order.size();
    ASSERT_FALSE(seen[x]) << x << " of " << order.size();
    seen[x] = true;
  }
}

TEST(EpochPermutation, EveryIndexHasExactlyOneImageAtEverySmallSize) {
  for (uint64_t size = 1; size <= 600; ++size) ExpectPermutation(Order(size, size, 0, size % 3));
}

TEST(EpochPermutation, EveryIndexHasExactlyOneImageAtPrimesPowersAndTheirNeighbours) {
  for (const uint64_t size : {1021ull, 1023ull, 1024ull, 1025ull, 4095ull, 4096ull, 4097ull,
                              65521ull, 65536ull, 65537ull, 99991ull}) {
    ExpectPermutation(Order(size, 5, 1, 0));
  }
}

TEST(EpochPermutation, SizesUpToTheBoundStayInsideAndDistinct) {
  for (const uint64_t size :
       {(uint64_t{1} << 32) - 5, (uint64_t{1} << 32) + 1, (uint64_t{1} << 61) + 1,
        EpochPermutation::kMaxSize - 1, EpochPermutation::kMaxSize}) {
    const EpochPermutation permutation(size, 3, 0, 1);
    std::set<uint64_t> images;
    for (uint64_t i = 0; i < 500; ++i) {
      for (const uint64_t index : {i, size - 1 - i}) {
        const uint64_t image = permutation(index);
        EXPECT_LT(image, size);
        EXPECT_TRUE(images.insert(image).second);
      }
    }
  }
}

TEST(EpochPermutation, SeedStreamAndEpochEachChangeTheOrder) {
  const auto order = Order(1000, 1, 2, 3);
  EXPECT_EQ(Order(1000, 1, 2, 3), order);
  EXPECT_NE(Order(1000, 2, 2, 3), order);
  EXPECT_NE(Order(1000, 1 + (uint64_t{1} << 32), 2, 3), order);
  EXPECT_NE(Order(1000, 1, 3, 3), order);
  EXPECT_NE(Order(1000, 1, 2, 4), order);
  EXPECT_NE(Order(1000, 1, 2, 3 + (uint64_t{1} << 32)), order);
}

// Chi-squared over all orders of a few elements: the hardest case for a network of few bits.
TEST(EpochPermutation, EveryOrderOfAFewElementsIsEquallyLikely) {
  for (const uint64_t size : {2, 3, 4, 5, 6}) {
    const int orders = static_cast<int>(std::tgamma(size + 1.0));
    constexpr int kEach = 200;
    std::map<std::vector<uint64_t>, int> counts;
    for (int epoch = 0; epoch < kEach * orders; ++epoch) ++counts[Order(size, 11, 0, epoch)];
    EXPECT_EQ(counts.size(), static_cast<size_t>(orders));
    double chi_squared = 0;
    for (const auto& [order, count] : counts) {
      chi_squared += (count - kEach) * (count - kEach) / static_cast<double>(kEach);
    }
    const double freedom = orders - 1;
    EXPECT_LT(chi_squared, freedom + 4.5 * std::sqrt(2 * freedom) + 4) << size;
  }
}

// Every position gets every sample equally often over epochs, and adjacent positions get adjacent
// samples no more often than by chance.
TEST(EpochPermutation, LargerOrdersShowNoPattern) {
  constexpr uint64_t kSize = 97;
  constexpr int kEpochs = 20'000;
  std::vector<int> first(kSize);
  int adjacent = 0;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const EpochPermutation permutation(kSize, 1, 0, epoch);
    const uint64_t a = permutation(0), b = permutation(1);
    ++first[a];
    adjacent += b == a + 1;
  }
  const double expected = static_cast<double>(kEpochs) / kSize;
  double chi_squared = 0;
  for (const int count : first) chi_squared += (count - expected) * (count - expected) / expected;
  EXPECT_NEAR(chi_squared, kSize - 1, 5 * std::sqrt(2.0 * kSize));
  EXPECT_NEAR(adjacent, expected, 5 * std::sqrt(expected));
}

}  // namespace
}  // namespace nibble
