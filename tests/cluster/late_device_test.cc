// A cluster whose ranks train on the late device (kernels/late/late_device.h): the recipe changes
// in mid-run, a rank is killed, checkpoints are copied beside the steps, and every loss is the
// CPU's.
#include <signal.h>

#include <string>

#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

TEST(LateDevices, AKilledGangEndsWithTheLossesOfTheCpu) {
  ClusterBed bed({.workers = 2, .slots = 1, .late_devices = true});
  const TinyJob spec = {.ranks = 2, .steps = 120, .every = 10};
  const std::string job = bed.Submit(spec);
  bed.ExpectStep(job, 35);
  const auto ranks = bed.LiveRanks();
  ASSERT_EQ(ranks.size(), 2u) << bed.Story(job);
  SignalProcess(ranks[1].process, SIGKILL);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_GE(bed.Describe(job).attempts(), 2);
  bed.ExpectUndisturbedLosses(job, spec);
}

TEST(LateDevices, ALiveSwitchTakesEffectAtOneStepOnEveryRank) {
  ClusterBed bed({.workers = 2, .slots = 1, .late_devices = true});
  const std::string job = bed.Submit({.ranks = 2, .steps = 100'000, .every = 25});
  bed.ExpectStep(job, 20);
  const v1::SetRecipeResponse set = bed.Ask(kSetRecipe, RecipeChange(job, "fprop", "bf16", "now"));
  EXPECT_EQ(set.revision(), 2);
  bed.ExpectStep(job, set.first_step() + 20);
  int64_t from = -1;
  for (const auto& event : EventsOf(bed.EventLog(job), "step")) {
    if (event.at("revision") == 2 && from < 0) from = event.at("step");
    EXPECT_EQ(event.at("revision"), from < 0 ? 1 : 2) << event.at("step");
  }
  EXPECT_GE(from, set.first_step());
  EXPECT_LE(from, set.first_step() + 2);
}

}  // namespace
}  // namespace nibble
