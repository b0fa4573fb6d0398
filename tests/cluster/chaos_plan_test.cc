#include "tests/cluster/chaos_plan.h"

#include <chrono>
#include <map>
#include <set>

#include "gtest/gtest.h"

namespace nibble {
namespace {

std::string Text(const std::vector<PlannedFault>& plan) {
  std::string text;
  for (const PlannedFault& planned : plan) text += Describe(planned) + "\n";
  return text;
}

TEST(ChaosPlanTest, ASeedReproducesItsFaultsAndAnotherGivesDifferentOnes) {
  EXPECT_EQ(Text(PlanFaults(7, 50)), Text(PlanFaults(7, 50)));
  EXPECT_NE(Text(PlanFaults(7, 50)), Text(PlanFaults(8, 50)));
}

TEST(ChaosPlanTest, EveryKindOccurs) {
  std::map<Fault, int> times;
  for (const PlannedFault& planned : PlanFaults(3, kFaults + 3)) ++times[planned.fault];
  EXPECT_EQ(times.size(), static_cast<size_t>(kFaults));
  for (const auto& [fault, count] : times) EXPECT_LE(count, 2);
}

TEST(ChaosPlanTest, WallClocksJumpForwardAndBackwardBySecondsAndByAMonth) {
  std::set<std::chrono::milliseconds> jumps;
  for (const PlannedFault& planned : PlanFaults(3, 100)) jumps.insert(WallClockAfter(planned));
  EXPECT_EQ(*jumps.begin(), std::chrono::hours(-2));
  EXPECT_EQ(*jumps.rbegin(), std::chrono::hours(30 * 24));
}

}  // namespace
}  // namespace nibble
