// Runs that are killed or stopped and resume: they end exactly as an undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/trainer/stored_runs_testing.h"

namespace nibble {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class Resume : public StoredRuns {
 protected:
  // Whether a checkpoint is being written.
  bool Writing(const std::string& name) const {
    std::error_code error;
    for (fs::directory_iterator at(root_ / name / "checkpoints", error), end; !error && at != end;
         at.increment(error)) {
      if (at->path().filename().string().starts_with("writing-")) return true;
    }
    return false;
  }
};

// A kill is triggered by the start, by a few more steps, by the writing of a checkpoint, or by a
// recipe change that has taken effect, and follows after a random time.
TEST_F(Resume, ARunKilledTwentyTimesEndsAsTheUndisturbedRun) {
  constexpr int kKills = 20;
  constexpr int kRunSteps = 140;
  // A change every kChange steps, so that many kills come shortly after one.
  constexpr int kChange = 7;
  const char* const changes[] = {"{fprop: bf16}", "{fprop: nvfp4}", "{wgrad: bf16}",
                                 "{wgrad: nvfp4, dgrad: mxfp8}"};
  std::string more = std::string(kCheckpoints) + "changes:\n";
  int last_change = 0;
  for (int step = kChange; step < kRunSteps; step += kChange) {
    more += "  - {at: step:" + std::to_string(step) +
            ", set: " + changes[step / kChange % std::size(changes)] + "}\n";
    last_change = step;
  }
  const Settings settings = {.ranks = 2, .steps = kRunSteps, .more = more};
  const std::map<int64_t, double> losses = LossByStep(Run("whole", settings));
  ASSERT_EQ(losses.size(), kRunSteps);

  const fs::path spec = WriteSpec("killed", settings);
  std::mt19937 random(20);
  const auto draw = [&random](int below) { return static_cast<int>(random() % below); };
  int while_writing = 0;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    const size_t before = EventsOf(Events("killed"), "step").size();
    const size_t switches = EventsOf(Events("killed"), "revision").size();
    const int kind = kill_number % 5 == 4 ? 3 : draw(3);
    const size_t steps = before + 2 + draw(6);
    const pid_t child = Start("killed", spec);
    const auto reached = [&] {
      if (kind == 0) return true;
      // The first event has the initial recipe.
      if (kind == 3) return EventsOf(Events("killed"), "revision").size() >= switches + 2;
      if (EventsOf(Events("killed"), "step").size() >= steps) return kind == 1 || Writing("killed");
      return false;
    };
    bool ended = false;
    while (!reached()) {
      siginfo_t info = {};
      ended = waitid(P_PID, child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
      if (ended) break;
      PauseOfPoll();
    }
    ASSERT_FALSE(ended) << "the run ended before kill " << kill_number << "\n" << Chatter("killed");
    const auto until = std::chrono::steady_clock::now() +
                       std::chrono::microseconds(kind == 0 ? draw(300'000) : draw(20'000));
    std::this_thread::sleep_until(until);
    while_writing += Writing("killed") ? 1 : 0;
    ASSERT_EQ(kill(child, SIGKILL), 0);
    EXPECT_EQ(Wait(child), 128 + SIGKILL);
  }
  ASSERT_EQ(Wait(Start("killed", spec)), 0) << Chatter("killed");
  EXPECT_EQ(LossByStep(Events("killed")), losses);
  EXPECT_TRUE(SameTensors(Tensors("whole", kRunSteps), Tensors("killed", kRunSteps)));
  RecordProperty("killed_while_writing", while_writing);
  // The last change is in effect from its step, also after replays.
  const std::vector<json> revisions = EventsOf(Events("killed"), "revision");
  ASSERT_FALSE(revisions.empty());
  EXPECT_EQ(revisions.back().at("revision"), 1 + last_change / kChange);
  EXPECT_EQ(revisions.back().at("step"), last_change);
}

// The decision is made again from the data, by both ranks, and the promotion ends at its step.
TEST_F(Resume, ARunKilledAfterAGuardPromotedLayersEndsAsTheUndisturbedRun) {
  constexpr int kRunSteps = 60;
  const std::string guards =
      "guards: {relative_error: promote, relative_error_above: 0.01, promote_steps: 4}\n";
  const Settings settings = {
      .ranks = 2, .steps = kRunSteps, .more = std::string(kCheckpoints) + guards};
  const std::vector<json> whole = Run("whole", settings);
  // Samples every fourth step: a promotion in steps 1 to 4 leaves nothing to sample in step 4.
  const auto promotions = [](const std::vector<json>& events) {
    std::map<int64_t, size_t> layers;
    for (const json& event : EventsOf(events, "promotion")) {
      layers[event.at("step")] = event.at("layers").size();
    }
    return layers;
  };
  const std::map<int64_t, size_t> expected = promotions(whole);
  ASSERT_EQ(expected.size(), 15u) << Chatter("whole");
  EXPECT_GT(expected.at(1), 0u);
  EXPECT_EQ(expected.at(5), 0u);
  EXPECT_NE(Losses(whole), Losses(Run("plain", {.ranks = 2, .steps = kRunSteps})));

  const fs::path spec = WriteSpec("killed", settings);
  // Within a promotion, shortly before one, and after one.
  for (const size_t steps : {3u, 21u, 36u}) {
    const pid_t child = Start("killed", spec);
    while (LossByStep(Events("killed")).size() < steps) PauseOfPoll();
    ASSERT_EQ(kill(child, SIGKILL), 0);
    EXPECT_EQ(Wait(child), 128 + SIGKILL);
  }
  ASSERT_EQ(Wait(Start("killed", spec)), 0) << Chatter("killed");
  const std::vector<json> events = Events("killed");
  EXPECT_EQ(LossByStep(events), LossByStep(whole));
  for (const auto& [step, layers] : promotions(events)) {
    // A run that resumes within a promotion reports it at its first step.
    if (expected.contains(step)) {
      EXPECT_EQ(layers, expected.at(step)) << step;
    }
  }
  EXPECT_TRUE(SameTensors(Tensors("whole", kRunSteps), Tensors("killed", kRunSteps)));
}

// A signal's frame is written below the stack pointer, which oneDNN's GEMMs keep in a buffer on
// the heap: so no thread of a rank runs a handler, and none takes the signals that stop a run but
// the one that waits for them. SIGBUS is raised where a truncated file is read, outside of GEMMs,
// and its handler ends the process.
TEST_F(Resume, NoSignalRunsAHandlerInARank) {
  const pid_t child = Start("signals", WriteSpec("signals", {.ranks = 1, .steps = 4000}));
  while (LossByStep(Events("signals")).size() < 2) PauseOfPoll();
  const auto mask = [](const fs::path& status, const std::string& name) {
    std::ifstream file(status);
    for (std::string word; file >> word;) {
      if (word != name + ":") continue;
      file >> word;
      return std::stoull(word, nullptr, 16);
    }
    ADD_FAILURE() << status << " has no " << name;
    return 0ull;
  };
  const auto bit = [](int signal) { return 1ull << (signal - 1); };
  const fs::path process = fs::path("/proc") / std::to_string(child);
  // 32 and 33 are the C library's own, for cancelling threads and for changing users.
  EXPECT_EQ(mask(process / "status", "SigCgt") & ~(bit(32) | bit(33) | bit(SIGBUS)), 0u);
  int threads = 0, waiting = 0;
  for (const auto& thread : fs::directory_iterator(process / "task")) {
    const uint64_t stop = bit(SIGINT) | bit(SIGTERM);
    ++threads;
    // While a thread waits for signals, the system shows them as not blocked.
    if ((mask(thread.path() / "status", "SigBlk") & stop) != stop) ++waiting;
  }
  EXPECT_GT(threads, 1);
  EXPECT_EQ(waiting, 1);
  ASSERT_EQ(kill(child, SIGTERM), 0);
  EXPECT_EQ(Wait(child), 101) << Chatter("signals");
}

TEST_F(Resume, AStoppedAndResumedRunIsTheSame) {
  const Settings settings = {.ranks = 2, .steps = 30, .more = kCheckpoints};
  const std::vector<json> whole = Run("whole", settings);
  const fs::path spec = WriteSpec("stopped", settings);
  for (const size_t steps : {4u, 13u, 21u}) {
    const pid_t child = Start("stopped", spec);
    while (LossByStep(Events("stopped")).size() < steps) PauseOfPoll();
    ASSERT_EQ(kill(child, SIGTERM), 0);
    ASSERT_EQ(Wait(child), 101) << Chatter("stopped");
    // The stop takes a checkpoint, regardless of checkpoints.every.
    const json finish = EventsOf(Events("stopped"), "finish").back();
    EXPECT_EQ(finish.at("last_checkpoint"), finish.at("steps"));
    EXPECT_EQ(Stored("stopped").back(), finish.at("steps"));
  }
  ASSERT_EQ(Wait(Start("stopped", spec)), 0) << Chatter("stopped");
  const std::vector<json> events = Events("stopped");
  // No step was made twice.
  EXPECT_EQ(EventsOf(events, "step").size(), 30u);
  EXPECT_EQ(Losses(events), Losses(whole));
  EXPECT_TRUE(SameTensors(Tensors("whole", 30), Tensors("stopped", 30)));
}

TEST_F(Resume, EarlyStoppingEndsAtTheSameStepAfterAnyResume) {
  // No improvement is large enough: the first of the validations after 6, 12 and 18 steps stays the
  // best, and the patience is two more.
  const Settings settings = {.steps = 60,
                             .more =
                                 "early_stop: {patience: 2, min_delta: 1000}\n"
                                 "checkpoints: {every: 9, keep_last: 30}\n"};
  const std::vector<json> events = Run("early", settings);
  EXPECT_EQ(LossByStep(events).size(), 18u);
  ASSERT_EQ(EventsOf(events, "finish").size(), 1u);
  EXPECT_EQ(EventsOf(events, "finish")[0].at("reason"), "early_stop");
  EXPECT_EQ(EventsOf(events, "finish")[0].at("steps"), 18);
  EXPECT_EQ(Stored("early").back(), 18);

  // Resumed between validations, and at the end. No other checkpoint precedes that of step 9, so it
  // is not put off on a fast machine.
  const fs::path spec = WriteSpec("early", settings);
  ASSERT_EQ(Wait(Start("early", spec, {"--from-step", "9"})), 0) << Chatter("early");
  EXPECT_EQ(LossByStep(Events("early")), LossByStep(events));
  ASSERT_EQ(Wait(Start("early", spec)), 0) << Chatter("early");
  const std::vector<json> finishes = EventsOf(Events("early"), "finish");
  ASSERT_EQ(finishes.size(), 3u);
  for (const json& finish : finishes) {
    EXPECT_EQ(finish.at("steps"), 18);
    EXPECT_EQ(finish.at("reason"), "early_stop");
  }
}

TEST_F(Resume, AnyNumberOfRanksResumesFromTheSameState) {
  const Settings half = {.ranks = 2, .steps = 12, .more = kCheckpoints};
  (void)Run("two", half);
  const std::map<std::string, std::string> tensors = Tensors("two", 12);
  std::vector<double> first;
  for (const int ranks : {1, 2, 4}) {
    const std::string name = "on" + std::to_string(ranks);
    fs::copy(root_ / "two", root_ / name, fs::copy_options::recursive);
    Settings longer = half;
    longer.ranks = ranks;
    longer.steps = 15;
    const fs::path spec = WriteSpec(name, longer);
    ASSERT_EQ(Wait(Start(name, spec)), 0) << Chatter(name);
    const std::vector<json> resumed = EventsOf(Events(name), "resume");
    ASSERT_EQ(resumed.size(), 1u);
    EXPECT_EQ(resumed[0].at("step"), 12);
    EXPECT_EQ(resumed[0].at("checkpoint_ranks"), 2);
    first.push_back(LossByStep(Events(name)).at(12));
    EXPECT_EQ(Stored(name).back(), 15);
  }
  // The same weights and the same batch; the sum over ranks is taken in FP64.
  EXPECT_NEAR(first[1] / first[0], 1.0, 1e-12);
  EXPECT_NEAR(first[2] / first[0], 1.0, 1e-12);
  // Checkpoints of two and of four ranks are equally complete.
  EXPECT_EQ(Tensors("on4", 12).size(), tensors.size());
  EXPECT_TRUE(SameTensors(Tensors("on4", 12), tensors));
}

TEST_F(Resume, TheLevelOfShardingMayChangeBetweenAttempts) {
  const auto with = [](const char* level, int steps) {
    return Settings{.ranks = 4, .steps = steps, .more = kCheckpoints, .sharding = level};
  };
  const std::vector<json> whole = Run("whole", with("optimizer", 15));
  fs::path spec = WriteSpec("changed", with("weights", 15));
  for (const auto& [steps, level] : {std::pair(4u, "gradients"), std::pair(9u, "weights")}) {
    const pid_t child = Start("changed", spec);
    while (LossByStep(Events("changed")).size() < steps) PauseOfPoll();
    ASSERT_EQ(kill(child, SIGTERM), 0);
    ASSERT_EQ(Wait(child), 101) << Chatter("changed");
    spec = WriteSpec("changed", with(level, 15));
  }
  ASSERT_EQ(Wait(Start("changed", spec)), 0) << Chatter("changed");
  EXPECT_EQ(Losses(Events("changed")), Losses(whole));
  EXPECT_TRUE(SameTensors(Tensors("changed", 15), Tensors("whole", 15)));
}

TEST_F(Resume, ARunThatSkipsEveryStepStopsAndKeepsItsGoodCheckpoints) {
  (void)Run("run", {.steps = 6, .more = kCheckpoints});
  const auto good = Tensors("run", 6);
  const fs::path spec = WriteSpec("run", {.steps = 100, .more = kCheckpoints});
  // From here on every update multiplies the weights by about a hundred.
  std::string broken = TextOf(spec);
  broken.replace(broken.find("lr: 0.002"), 9, "lr: 10, weight_decay: 10");
  std::ofstream(spec) << broken;
  EXPECT_EQ(Wait(Start("run", spec)), static_cast<int>(TrainerExit::kGuardPause)) << Chatter("run");
  EXPECT_THAT(Chatter("run"), HasSubstr("guards.max_skips: 10 steps in a row were skipped"));
  int64_t first_skip = -1;
  for (const json& guard : EventsOf(Events("run"), "guard")) {
    if (guard.at("action") == "skipped" && first_skip < 0) first_skip = guard.at("step");
  }
  ASSERT_GE(first_skip, 6) << Chatter("run");
  EXPECT_EQ(EventsOf(Events("run"), "guard").back().at("action"), "pause");
  // The newest checkpoint is from before it, not from a skipped step.
  EXPECT_LE(Stored("run").back(), first_skip);
  EXPECT_TRUE(SameTensors(Tensors("run", 6), good));
}

TEST_F(Resume, OnAFullDiskTrainingContinuesAndTheCheckpointIsWrittenOnceThereIsSpace) {
  if (!MayMount()) GTEST_SKIP() << "this machine does not permit mounting a small disk";
  const Settings settings = {.steps = 6, .more = kCheckpoints};
  const std::vector<json> whole = Run("whole", settings);
  const fs::path spec = WriteSpec("full", settings);
  const pid_t child = Start("full", spec, {}, 128 << 20);
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  // Every step is made, and the run waits to store its state.
  const auto waits = [&] {
    return EventsOf(Events("full"), "step").size() == 6u &&
           Chatter("full").find("the disk is full") != std::string::npos;
  };
  int status = 0;
  while (!waits() && std::chrono::steady_clock::now() < until) {
    ASSERT_EQ(waitpid(child, &status, WNOHANG), 0) << status << "\n" << Chatter("full");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_TRUE(waits()) << Chatter("full");
  EXPECT_THAT(Chatter("full"), HasSubstr("waits in memory for room in " +
                                         (root_ / "full" / "checkpoints").string()));
  EXPECT_TRUE(EventsOf(Events("full"), "finish").empty());
  FreeDisk("full", child);
  EXPECT_EQ(Wait(child), 0) << Chatter("full");
  const std::vector<json> events = Events("full");
  EXPECT_EQ(LossByStep(events), LossByStep(whole));
  EXPECT_EQ(EventsOf(events, "finish")[0].at("last_checkpoint"), 6);
  EXPECT_EQ(EventsOf(events, "finish")[0].at("failed_checkpoints"), 0);
}

}  // namespace
}  // namespace nibble
