#include "worker/trainer/comm/ordered_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace nibble {
namespace {

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

TEST(OrderedSumTest, EachElementIsSummedInOrderWhateverTheLength) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (const int ranks : {1, 2, 3, 5}) {
    for (const int64_t count : {0, 1, 15, 16, 17, 1023, 1024, 1025, 5000}) {
      std::vector<std::vector<float>> in(ranks, std::vector<float>(count));
      std::vector<const float*> pointers;
      std::vector<float> expected(count), out(count);
      for (std::vector<float>& x : in) {
        for (float& value : x) value = std::ldexp(uniform(random), random() % 20);
        pointers.push_back(x.data());
      }
      for (int64_t i = 0; i < count; ++i) {
        expected[i] = in[0][i];
        for (int r = 1; r < ranks; ++r) expected[i] += in[r][i];
      }
      SumInRankOrder(pointers, out.data(), count);
      EXPECT_TRUE(SameBits(out, expected)) << ranks << " ranks, " << count << " elements";
      // Onto the last input, as ReduceScatter in place does.
      SumInRankOrder(pointers, in.back().data(), count);
      EXPECT_TRUE(SameBits(in.back(), expected)) << ranks << " ranks, " << count << " elements";
    }
  }
}

TEST(OrderedSumTest, IntegerSumsWrapAround) {
  const int64_t in[] = {std::numeric_limits<int64_t>::max(), 1};
  int64_t out = 0;
  ReduceInRankOrder(in, &out, 2, 1, ReduceElement::kInt64, Reduction::kSum);
  EXPECT_EQ(out, std::numeric_limits<int64_t>::min());
}

TEST(OrderedSumTest, LargeIntegersAreNotRounded) {
  const int64_t in[] = {(int64_t{1} << 60) + 1, (int64_t{1} << 60) + 2};
  int64_t out = 0;
  ReduceInRankOrder(in, &out, 2, 1, ReduceElement::kInt64, Reduction::kSum);
  EXPECT_EQ(out, (int64_t{1} << 61) + 3);
  ReduceInRankOrder(in, &out, 2, 1, ReduceElement::kInt64, Reduction::kMax);
  EXPECT_EQ(out, (int64_t{1} << 60) + 2);
}

template <class T>
void CheckMax(ReduceElement element) {
  const T nan = std::numeric_limits<T>::quiet_NaN(), inf = std::numeric_limits<T>::infinity();
  // [3 ranks, 5]
  const T in[] = {1, nan, 1, -inf, T(0), 3, 2, nan, -1, -T(0), 2, 1, 1, -2, T(0)};
  T out[5];
  ReduceInRankOrder(in, out, 3, 5, element, Reduction::kMax);
  EXPECT_EQ(out[0], 3);
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], -1);
  EXPECT_FALSE(std::signbit(out[4]));
}

TEST(OrderedSumTest, MaximumKeepsNanAndTheFirstOfEquals) {
  CheckMax<float>(ReduceElement::kFloat32);
  CheckMax<double>(ReduceElement::kFloat64);
}

}  // namespace
}  // namespace nibble
