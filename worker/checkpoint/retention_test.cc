// Which checkpoints a store keeps.
#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Checkpoints of these steps, committed in this order.
std::vector<StoredDirectory> Committed(const std::vector<int64_t>& steps) {
  std::vector<StoredDirectory> committed;
  for (const int64_t step : steps) {
    committed.push_back({Stage::kCommitted, step, 1, static_cast<int64_t>(committed.size())});
  }
  return committed;
}

std::vector<int64_t> Gone(const std::vector<int64_t>& steps, const std::set<int64_t>& pinned,
                          const Retention& retention) {
  std::vector<int64_t> gone;
  for (const StoredDirectory& d : ToDelete(Committed(steps), pinned, retention)) {
    gone.push_back(d.step);
  }
  return gone;
}

TEST(RetentionTest, TheNewestAreKept) {
  EXPECT_THAT(Gone({10, 20, 30, 40}, {}, {.keep_last = 2}), ElementsAre(10, 20));
  EXPECT_THAT(Gone({10, 20}, {}, {.keep_last = 2}), IsEmpty());
}

TEST(RetentionTest, MultiplesOfKeepEveryAreKept) {
  EXPECT_THAT(Gone({0, 10, 20, 30, 40, 50}, {}, {.keep_last = 1, .keep_every = 20}),
              ElementsAre(10, 30));
}

TEST(RetentionTest, PinnedStepsAreKept) {
  EXPECT_THAT(Gone({10, 20, 30}, {10}, {.keep_last = 1}), ElementsAre(20));
}

TEST(RetentionTest, NewestIsByCommitAndNotByStep) {
  EXPECT_THAT(Gone({40, 50, 30, 35}, {}, {.keep_last = 2}), ElementsAre(40, 50));
}

TEST(RetentionTest, ReplacedCheckpointsAreDeletedEvenIfPinned) {
  const std::vector<StoredDirectory> gone =
      ToDelete(Committed({10, 20, 10}), {10}, {.keep_last = 5, .keep_every = 10});
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].serial, 0);
}

TEST(RetentionTest, ARetentionThatKeepsNothingIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRetention({.keep_last = 0})));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRetention({.keep_last = 1, .keep_every = -1})));
}

}  // namespace
}  // namespace nibble
