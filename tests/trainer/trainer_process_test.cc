// nibble-trainer as users run it: reads a spec, writes an event log.
#include "tests/trainer/trainer_process_testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace nibble {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kDecayFirst = 8;  // of 12 steps, the last third decays

TEST_F(TrainerProcess, TheSameSpecGivesTheSameLossesForAnyNumberOfThreads) {
  const std::vector<double> first = Losses(Run("first", {.threads = 1}));
  ASSERT_EQ(first.size(), kSteps + 2u);
  EXPECT_LT(first[kSteps - 1], first[0]);
  EXPECT_EQ(first, Losses(Run("second", {.threads = 1})));
  EXPECT_EQ(first, Losses(Run("third", {.threads = 3})));
}

// On a card passes run from recordings, except those of traced steps.
TEST_F(TrainerProcess, RecomputingBlocksAndTracingStepsOfOneRankChangeNoLoss) {
  const std::vector<double> expected = Losses(Run("plain", {}));
  EXPECT_EQ(Losses(Run("recomputed", {.recompute = "blocks"})), expected);
  const std::string trace = (root_ / "trace.json").string();
  ASSERT_EQ(Wait(Start("traced", WriteSpec("traced", {}),
                       {"--trace", trace, "--trace-steps", "3", "--trace-after", "5"})),
            0);
  EXPECT_EQ(Losses(Events("traced")), expected);
}

TEST_F(TrainerProcess, ASecondRunWithTheSameRanksGivesTheSameLosses) {
  EXPECT_EQ(Losses(Run("first", {.ranks = 2})), Losses(Run("second", {.ranks = 2})));
}

// The ranks see the same sequences in the same micro-batches, draw the same random bits and find
// the same tensor scales; only the order of adding FP32 gradients differs. The rounding error of a
// sum of n terms is about sqrt(n) · 2^-24 of its terms. AdamW's division by sqrt(v) turns it into a
// similar fraction of the learning rate per weight and step: around 1e-6 of the loss over these few
// steps in FP32. In NVFP4 a weight near a rounding boundary may round to the other side, which adds
// quantisation noise of single weights.
TEST_F(TrainerProcess, OneTwoAndFourRanksAgreeWithinTheNoiseOfFp32Sums) {
  for (const auto& [recipe, precision, bound] :
       {std::tuple("bf16", "fp32", 1e-5), std::tuple("nvfp4", "bf16", 5e-3)}) {
    const std::string tag = recipe;
    const std::vector<double> one =
        Losses(Run(tag + "1", {.recipe = recipe, .precision = precision}));
    for (const int ranks : {2, 4}) {
      const std::vector<double> more = Losses(Run(
          tag + std::to_string(ranks), {.ranks = ranks, .recipe = recipe, .precision = precision}));
      ASSERT_EQ(more.size(), one.size());
      // Before any update only the loss itself was summed over ranks, in FP64.
      EXPECT_NEAR(more[0] / one[0], 1.0, 1e-12) << tag << ranks;
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_NEAR(more[i] / one[i], 1.0, bound) << tag << ranks << " at " << i;
      }
    }
  }
}

TEST_F(TrainerProcess, EveryLevelOfShardingGivesTheSameLosses) {
  // One micro-batch in a step on four ranks, two on two, where ranks are summed in each.
  const auto losses = [&](int ranks, const std::string& sharding) {
    const std::string name = sharding + std::to_string(ranks);
    return Losses(Run(name, {.ranks = ranks, .sharding = sharding}));
  };
  const std::vector<double> four = losses(4, "optimizer");
  EXPECT_EQ(losses(4, "gradients"), four);
  EXPECT_EQ(losses(4, "weights"), four);
  EXPECT_EQ(losses(2, "weights"), losses(2, "gradients"));
  EXPECT_EQ(losses(1, "weights"), losses(1, "optimizer"));
}

TEST_F(TrainerProcess, APlannedChangeTakesEffectAtTheDecayOnAllRanks) {
  const std::string change = "changes: [{at: lr-decay, set: {fprop: bf16}, reason: test}]\n";
  for (const int ranks : {1, 2}) {
    const std::string name = "ranks" + std::to_string(ranks);
    const std::vector<json> events = Run(name, {.ranks = ranks, .more = change});
    const std::vector<json> revisions = EventsOf(events, "revision");
    ASSERT_EQ(revisions.size(), 2u);
    EXPECT_EQ(revisions[0].at("step"), 0);
    EXPECT_EQ(revisions[1].at("step"), kDecayFirst);
    EXPECT_EQ(revisions[1].at("reason"), "test");
    EXPECT_FALSE(revisions[1].at("changes").empty());
    for (const json& step : EventsOf(events, "step")) {
      EXPECT_EQ(step.at("revision"), step.at("step") < kDecayFirst ? 1 : 2);
    }
    // Fprop has no quantised operand to report on any more; Wgrad has.
    bool fprop = false;
    bool wgrad = false;
    for (const json& event : EventsOf(events, "precision")) {
      if (event.at("step") < kDecayFirst) continue;
      const std::string operand = event.at("operand");
      fprop |= operand.starts_with("fprop");
      wgrad |= operand.starts_with("wgrad");
    }
    EXPECT_FALSE(fprop);
    EXPECT_TRUE(wgrad);
  }
}

// Also of queues that run late, whose passes are otherwise recorded: the results stay the same.
TEST_F(TrainerProcess, ATraceHasTheStepsOfEveryRankAndChangesNoResult) {
  const Settings settings = {.ranks = 2, .steps = 8};
  const std::vector<double> expected = Losses(Run("untraced", settings));
  for (const char* const program :
       {"worker/trainer/loop/nibble-trainer", "worker/trainer/loop/nibble-trainer-late"}) {
    program_ = program;
    const std::string name = fs::path(program).filename();
    const fs::path file = root_ / (name + ".json");
    ASSERT_EQ(Wait(Start(name, WriteSpec(name, settings),
                         {"--trace", file.string(), "--trace-steps", "2", "--trace-after", "3"})),
              0);
    EXPECT_EQ(Losses(Events(name)), expected) << name;
    std::ifstream in(file);
    const json trace = json::parse(in);
    std::map<int, std::vector<std::string>> steps;  // by rank
    std::map<int, std::map<int, int>> spans;        // number, by rank and track
    for (const json& event : trace) {
      if (event.at("ph") != "X") continue;
      const std::string span = event.at("name");
      ++spans[event.at("pid")][event.at("tid")];
      if (event.at("tid") == 1 && span.starts_with("step ")) steps[event.at("pid")].push_back(span);
      EXPECT_GE(event.at("dur").get<double>(), 0) << span;
    }
    for (const int rank : {0, 1}) {
      EXPECT_THAT(steps[rank], testing::ElementsAre("step 3", "step 4")) << name << rank;
      for (const int track : {0, 1, 2, 4, 5}) EXPECT_GT(spans[rank][track], 0) << name << track;
    }
  }
}

TEST_F(TrainerProcess, ATraceThatTheRunIsTooShortForIsANotice) {
  const fs::path file = root_ / "missed.json";
  const pid_t child = Start("missed", WriteSpec("missed", {.ranks = 2, .steps = 3}),
                            {"--trace", file.string(), "--trace-steps", "2", "--trace-after", "2"});
  EXPECT_EQ(Wait(child), 0) << Chatter("missed");
  EXPECT_FALSE(fs::exists(file));
  const std::vector<json> notices = EventsOf(Events("missed"), "notice");
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].at("text"),
            "trace: the run ended with 1 of the steps to trace left, so none is written");
}

TEST_F(TrainerProcess, SigtermStopsAllRanksAtTheSameStepAndIsReported) {
  const pid_t child = Start("stopped", WriteSpec("stopped", {.ranks = 2, .steps = 1000000}));
  // Waits for a few steps in the log; the timeout of the test bounds the wait.
  while (EventsOf(Events("stopped"), "step").size() < 3) PauseOfPoll();
  ASSERT_EQ(kill(child, SIGTERM), 0);
  EXPECT_EQ(Wait(child), 101) << Chatter("stopped");
  const std::vector<json> finish = EventsOf(Events("stopped"), "finish");
  ASSERT_EQ(finish.size(), 1u);
  EXPECT_EQ(finish[0].at("reason"), "stopped");
  EXPECT_EQ(finish[0].at("steps").get<int>(),
            EventsOf(Events("stopped"), "step").back().at("step").get<int>() + 1);
}

TEST_F(TrainerProcess, ABadSpecIsRefusedBeforeAnythingIsWritten) {
  const pid_t child = Start("bad", WriteSpec("bad", {.recipe = "nvpf4"}));
  EXPECT_EQ(Wait(child), 2);
  EXPECT_NE(Chatter("bad").find("nvfp4"), std::string::npos) << Chatter("bad");
  EXPECT_FALSE(fs::exists(root_ / "bad"));
}

TEST_F(TrainerProcess, ADirectoryIsNoSpec) {
  EXPECT_EQ(Wait(Start("directory", root_)), 2);
  EXPECT_NE(Chatter("directory").find("cannot read " + root_.string()), std::string::npos)
      << Chatter("directory");
}

TEST_F(TrainerProcess, ARankBeyondTheGroupIsRefusedBeforeAnythingIsWritten) {
  EXPECT_EQ(Wait(Start("beyond", WriteSpec("beyond", {}), {"--rank", "7"})), 2);
  EXPECT_NE(Chatter("beyond").find("--rank 7 is not below --world 1"), std::string::npos)
      << Chatter("beyond");
  EXPECT_FALSE(fs::exists(root_ / "beyond"));
}

TEST_F(TrainerProcess, MissingDataIsNamed) {
  fs::remove(root_ / "corpus.txt");
  const pid_t child = Start("missing", WriteSpec("missing", {}));
  EXPECT_EQ(Wait(child), static_cast<int>(TrainerExit::kSpec));
  EXPECT_NE(Chatter("missing").find("corpus.txt"), std::string::npos) << Chatter("missing");
}

}  // namespace
}  // namespace nibble
