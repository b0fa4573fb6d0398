// What holds for every collective, shown on the one of a single rank.
#include "worker/trainer/comm/collective.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/trainer/comm/gloo_collective.h"
#include "worker/trainer/comm/local_collective.h"

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

}  // namespace
}  // namespace nibble
