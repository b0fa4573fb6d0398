#include "worker/trainer/cards/card_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble {
namespace {

using Cards = std::vector<std::array<uint64_t, 2>>;

const Cards kDistinct = {{1, 2}, {1, 3}, {2, 2}};
const Cards kShared = {{1, 2}, {1, 3}, {1, 2}};

TEST(ChooseNcclTest, RanksWithCardsOfTheirOwnUseNccl) {
  EXPECT_TRUE(*ChooseNccl(CardTransport::kAuto, kDistinct));
  EXPECT_TRUE(*ChooseNccl(CardTransport::kNccl, kDistinct));
  EXPECT_FALSE(*ChooseNccl(CardTransport::kStaged, kDistinct));
}

TEST(ChooseNcclTest, RanksThatShareACardAreStagedUnlessNcclIsNamed) {
  EXPECT_FALSE(*ChooseNccl(CardTransport::kAuto, kShared));
  EXPECT_FALSE(*ChooseNccl(CardTransport::kStaged, kShared));
  const auto named = ChooseNccl(CardTransport::kNccl, kShared);
  EXPECT_TRUE(absl::IsFailedPrecondition(named.status())) << named.status();
  EXPECT_THAT(std::string(named.status().message()), testing::HasSubstr("ranks 0 and 2 share one"));
}

TEST(ChooseNcclTest, OneRankUsesNcclOnlyIfItIsNamed) {
  const Cards one = {{1, 2}};
  EXPECT_FALSE(*ChooseNccl(CardTransport::kAuto, one));
  EXPECT_TRUE(*ChooseNccl(CardTransport::kNccl, one));
}

}  // namespace
}  // namespace nibble
