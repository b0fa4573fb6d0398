// Promises of every collective, tested with the collective of a single rank.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/comm/gloo_collective.h"

namespace nibble {
namespace {

std::string Refusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(CollectiveTest, OneRankGetsBackWhatItGave) {
  const std::unique_ptr<Collective> group = CreateLocal();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->world(), 1);
  const std::vector<float> in = {1, 2, 3};
  std::vector<float> out(3);
  ASSERT_TRUE(group->ReduceScatter(in.data(), out.data(), 3).ok());
  EXPECT_EQ(out, in);
  out.assign(3, 0);
  ASSERT_TRUE(group->AllGather(in.data(), out.data(), 12).ok());
  EXPECT_EQ(out, in);
  ASSERT_TRUE(group->ReduceScatter(out.data(), out.data(), 3).ok());
  ASSERT_TRUE(group->AllGather(out.data(), out.data(), 12).ok());
  ASSERT_TRUE(group->AllReduce(out.data(), 3, Reduction::kSum).ok());
  ASSERT_TRUE(group->Broadcast(out.data(), 12, 0).ok());
  EXPECT_EQ(out, in);
  EXPECT_TRUE(group->Barrier().ok());
  EXPECT_TRUE(group->Synchronize().ok());
  EXPECT_EQ(*group->ExchangeSmall(std::vector<uint64_t>{4, 5}), (std::vector<uint64_t>{4, 5}));
}

TEST(CollectiveTest, GlooGroupOfOneNeedsNoRendezvous) {
  const auto group = CreateGloo({.rank = 0, .world = 1});
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_TRUE((*group)->Barrier().ok());
}

TEST(CollectiveTest, BadArgumentsAreRefusedByName) {
  const std::unique_ptr<Collective> group = CreateLocal();
  std::vector<float> x(10);
  double d = 0;
  const std::string who = " on rank 0 of 1: ";
  EXPECT_EQ(Refusal(group->AllGather(x.data(), x.data(), -1)),
            "AllGather" + who + "bytes = -1 is negative");
  EXPECT_EQ(Refusal(group->AllGather(nullptr, x.data(), 1)),
            "AllGather" + who + "in or out is null");
  EXPECT_EQ(Refusal(group->AllGather(x.data() + 1, x.data(), 8)),
            "AllGather" + who + "in overlaps out but is not out[rank]");
  EXPECT_EQ(Refusal(group->ReduceScatter(x.data(), x.data() + 1, 2)),
            "ReduceScatter" + who + "out overlaps in but is not in[rank]");
  EXPECT_EQ(Refusal(group->ReduceScatter(x.data(), nullptr, 2)),
            "ReduceScatter" + who + "in or out is null");
  EXPECT_EQ(Refusal(group->ReduceScatter(x.data(), x.data(), std::numeric_limits<int64_t>::max())),
            "ReduceScatter" + who + "count = 9223372036854775807 is above 2305843009213693951");
  EXPECT_EQ(Refusal(group->AllReduce(&d, (1 << 17) + 1, Reduction::kSum)),
            "AllReduce" + who + "count = 131073 is not in [0, 131072]");
  EXPECT_EQ(Refusal(group->AllReduce(static_cast<float*>(nullptr), 1, Reduction::kMax)),
            "AllReduce" + who + "data is null");
  EXPECT_EQ(Refusal(group->Broadcast(&d, 8, 1)), "Broadcast" + who + "root = 1 is not in [0, 1)");
  EXPECT_EQ(Refusal(group->Broadcast(nullptr, 8, 0)), "Broadcast" + who + "data is null");
  EXPECT_EQ(Refusal(group->ExchangeSmall(std::vector<uint64_t>(1025)).status()),
            "ExchangeSmall" + who + "mine.size() = 1025 is above 1024");
  EXPECT_TRUE(group->Barrier().ok()) << "a refusal is not a failure of the group";
}

TEST(CollectiveTest, NothingIsMovedForNothing) {
  const std::unique_ptr<Collective> group = CreateLocal();
  EXPECT_TRUE(group->AllGather(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(group->ReduceScatter(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(group->AllReduce(static_cast<int64_t*>(nullptr), 0, Reduction::kSum).ok());
  EXPECT_TRUE(group->Broadcast(nullptr, 0, 0).ok());
  EXPECT_EQ(group->ExchangeSmall({})->size(), 0u);
}

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
