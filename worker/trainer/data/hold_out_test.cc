#include "worker/trainer/data/hold_out.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(HoldOut, FractionsOutsideTheirBoundsAreRefused) {
  for (const double fraction :
       {-0.1, 1.0, 2.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const absl::Status status = HoldOut::Create(1, fraction).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << fraction;
    EXPECT_THAT(std::string(status.message()), HasSubstr("validation_fraction"));
  }
}

TEST(HoldOut, TheShareHeldOutIsTheFraction) {
  constexpr int64_t kDocuments = 200'000;
  for (const double fraction : {0.0, 0.001, 0.05, 0.5, 0.999}) {
    const auto hold_out = HoldOut::Create(7, fraction);
    int64_t held = 0;
    for (int64_t d = 0; d < kDocuments; ++d) held += hold_out->Contains(d);
    // Five standard deviations of the binomial.
    EXPECT_NEAR(held, fraction * kDocuments, 5 * std::sqrt(kDocuments * fraction * (1 - fraction)))
        << fraction;
  }
}

TEST(HoldOut, ALargerFractionHoldsOutTheSameDocumentsAndMore) {
  const auto small = HoldOut::Create(7, 0.01), large = HoldOut::Create(7, 0.1);
  for (int64_t d = 0; d < 10'000; ++d) {
    EXPECT_LE(small->Contains(d), large->Contains(d)) << d;
  }
}

TEST(HoldOut, AnotherSeedHoldsOutOthers) {
  const auto a = HoldOut::Create(1, 0.5), b = HoldOut::Create(2, 0.5);
  int64_t both = 0;
  for (int64_t d = 0; d < 40'000; ++d) both += a->Contains(d) && b->Contains(d);
  EXPECT_NEAR(both, 10'000, 500);
}

// The choice is stored nowhere, so that a changed one would mix training and validation texts of
// shards made before and after.
TEST(HoldOut, TheChoiceIsThatOfEveryEarlierVersion) {
  const auto hold_out = HoldOut::Create(1, 0.05);
  std::vector<int64_t> held;
  for (int64_t d = 0; d < 100; ++d) {
    if (hold_out->Contains(d)) held.push_back(d);
  }
  EXPECT_EQ(held, (std::vector<int64_t>{14, 36, 58, 94}));
}

}  // namespace
}  // namespace nibble
