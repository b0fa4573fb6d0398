// Whole runs on the late device (kernels/late/late_device.h) have the CPU's results, bit for bit:
// losses, validation, checkpoints, and runs that are killed and resume.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "tests/trainer/trainer_process_testing.h"

namespace nibble {
namespace {

constexpr char kLate[] = "worker/trainer/loop/nibble-trainer-late";
constexpr char kMore[] =
    "checkpoints: {every: 3, keep_last: 2}\n"
    "changes:\n"
    "  - {at: step:7, set: {fprop: bf16}}\n"
    "  - {at: step:10, set: {fprop: nvfp4, wgrad: mxfp8}}\n";

class OnTheLateDevice : public TrainerProcess, public testing::WithParamInterface<int> {};

TEST_P(OnTheLateDevice, ARunHasTheLossesOfTheCpu) {
  const Settings settings = {.ranks = GetParam(), .steps = 14, .more = kMore};
  const std::vector<double> expected = Losses(Run("cpu", settings));
  ASSERT_EQ(expected.size(), 14u + 3u);
  program_ = kLate;
  EXPECT_EQ(Losses(Run("late", settings)), expected);
}

TEST_P(OnTheLateDevice, AKilledRunResumesFromCheckpointsThatWereCopiedBesideItsSteps) {
  constexpr int kRunSteps = 24;
  const Settings settings = {.ranks = GetParam(), .steps = kRunSteps, .more = kMore};
  const std::map<int64_t, double> expected = LossByStep(Run("cpu", settings));
  ASSERT_EQ(expected.size(), kRunSteps);
  program_ = kLate;
  const auto spec = WriteSpec("late", settings);
  std::mt19937 random(5);
  size_t seen = 0;
  for (int kills = 0; kills < 3; ++kills) {
    const pid_t run = Start("late", spec);
    // A few steps further than before, then at any moment.
    const auto steps = [&] { return LossByStep(Events("late")).size(); };
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (steps() < seen + 3 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 60));
    kill(-run, SIGKILL);
    EXPECT_EQ(Wait(run), 128 + SIGKILL) << Chatter("late");
    seen = steps();
    if (seen + 6 > kRunSteps) break;
  }
  EXPECT_EQ(Wait(Start("late", spec)), 0) << Chatter("late");
  EXPECT_EQ(LossByStep(Events("late")), expected);
  EXPECT_FALSE(EventsOf(Events("late"), "resume").empty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, OnTheLateDevice, testing::Values(1, 2));

}  // namespace
}  // namespace nibble
