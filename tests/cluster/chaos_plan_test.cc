#include "tests/cluster/chaos_plan.h"

#include <map>

#include "gtest/gtest.h"

namespace nibble {
namespace {

std::string Text(const std::vector<PlannedFault>& plan) {
  std::string text;
  for (const PlannedFault& planned : plan) text += Describe(planned) + "\n";
  return text;
}

TEST(ChaosPlanTest, ASeedGivesTheSameFaultsAgainAndAnotherGivesOthers) {
  EXPECT_EQ(Text(PlanFaults(7, 50)), Text(PlanFaults(7, 50)));
  EXPECT_NE(Text(PlanFaults(7, 50)), Text(PlanFaults(8, 50)));
}

TEST(ChaosPlanTest, EveryKindComes) {
  std::map<Fault, int> times;
  for (const PlannedFault& planned : PlanFaults(3, 10)) ++times[planned.fault];
  EXPECT_EQ(times.size(), static_cast<size_t>(kFaults));
  for (const auto& [fault, count] : times) EXPECT_LE(count, 2);
}

}  // namespace
}  // namespace nibble
