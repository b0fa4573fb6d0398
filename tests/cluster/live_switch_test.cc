// The recipe changes while a gang runs: all ranks switch at the same step and stay switched.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using absl::StatusCode;
using nlohmann::json;
using testing::HasSubstr;

// The event of the step from which the revision is in effect.
v1::JobEvent InEffect(ClusterBed& bed, const std::string& job, int64_t revision) {
  return bed.ExpectEvent(job, [revision](const v1::JobEvent& event) {
    return event.kind() == v1::JOB_EVENT_KIND_RECIPE && event.revision() == revision &&
           absl::StrContains(event.text(), "in effect");
  });
}

// The number of workers, and of slots of each.
class LiveSwitch : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  LiveSwitch() : bed_({.workers = std::get<0>(GetParam()), .slots = std::get<1>(GetParam())}) {}

  absl::Status Set(const std::string& job, int64_t expected, const std::string& field,
                   const std::string& value, v1::SetRecipeResponse* response) {
    v1::SetRecipeRequest request = RecipeChange(job, field, value, "now");
    request.set_expected_revision(expected);
    return bed_.Call(kSetRecipe, request, response);
  }
  // The revision of each step; a test failure if two ranks or attempts disagree.
  std::map<int64_t, int64_t> RevisionOfSteps(const std::string& job) {
    std::map<int64_t, int64_t> revisions;
    for (const json& step : EventsOf(bed_.EventLog(job), "step")) {
      const auto [at, added] = revisions.try_emplace(step.at("step"), step.at("revision"));
      EXPECT_EQ(at->second, step.at("revision")) << "step " << at->first;
    }
    return revisions;
  }

  // Checks the switch in the newest checkpoint's recipe timeline. The job pauses first: a running
  // one soon deletes it for a newer one.
  void ExpectTimelineOfCheckpoint(const std::string& job, int64_t from) {
    (void)bed_.AskAbout(job, kPauseJob);
    bed_.ExpectState(job, v1::JOB_STATE_PAUSED);
    const auto checkpoints = bed_.Checkpoints(job);
    ASSERT_FALSE(checkpoints.empty()) << bed_.Story(job);
    ASSERT_GT(checkpoints[0].ref().step(), from);
    const std::string describe = absl::StrCat(NibbleProgram(), " checkpoint describe ", bed_.root(),
                                              "/cluster/worker-1/jobs/", job, "/checkpoints@",
                                              checkpoints[0].ref().step(), " -o json");
    // The coordinator knows of the commit before every worker's directory has it.
    ShellResult said;
    ASSERT_TRUE(Eventually([&] {
      said = Shell(describe);
      return said.code == 0;
    })) << said.text;
    const json checkpoint = said.json();
    const json& timeline = checkpoint.at("recipe_timeline");
    const json& revisions = timeline.at("revisions");
    ASSERT_EQ(revisions.size(), 2u);
    EXPECT_EQ(revisions[1].at("number"), 2);
    EXPECT_EQ(revisions[1].at("first_step"), from);
  }

  ClusterBed bed_;
};

TEST_P(LiveSwitch, TakesEffectWithinTwoStepsAndStaysAtItsStepAcrossAKill) {
  const std::string job =
      bed_.Submit({.ranks = 4, .steps = 100'000, .every = 25, .sequence = 64, .batch = 16});
  bed_.ExpectStep(job, 30);
  v1::SetRecipeResponse set;
  const absl::Status changed = Set(job, 1, "fprop", "bf16", &set);
  ASSERT_TRUE(changed.ok()) << changed.message();
  // The current step when the reply arrives.
  const auto made = EventsOf(bed_.EventLog(job), "step");
  const int64_t at_answer = static_cast<int64_t>(made.back().at("step")) + 1;
  EXPECT_EQ(set.revision(), 2);
  const int64_t from = InEffect(bed_, job, 2).step();
  EXPECT_LE(from, at_answer + 2);
  EXPECT_GE(from, set.first_step());

  // A kill right after the switch usually sets ranks back to before it.
  const auto ranks = bed_.LiveRanks();
  ASSERT_EQ(ranks.size(), 4u) << bed_.Story(job);
  SignalProcess(ranks[3].process, SIGKILL);
  bed_.ExpectStep(job, from + 60);
  bed_.ExpectSeen(job, [](const JobWatch::Seen& seen) { return seen.job.attempt().number() >= 2; });
  bed_.ExpectStep(job, from + 100);

  // The event, the samples and the log of rank 0 agree on the step.
  for (const auto& [step, sample] : bed_.watch().Of(job).samples) {
    EXPECT_EQ(sample.revision(), step < from ? 1 : 2) << "step " << step << " of " << from;
  }
  for (const auto& [step, revision] : RevisionOfSteps(job)) {
    EXPECT_EQ(revision, step < from ? 1 : 2) << "step " << step << " of " << from;
  }
  const auto revisions = bed_.Revisions(job);
  ASSERT_EQ(revisions.size(), 2u);
  EXPECT_EQ(revisions[1].first_step(), from);
  EXPECT_TRUE(revisions[1].confirmed());
  ExpectTimelineOfCheckpoint(job, from);
}

TEST_P(LiveSwitch, StaleAndInvalidChangesHaveNoEffect) {
  const std::string job = bed_.Submit({.ranks = 4, .steps = 100'000});
  bed_.ExpectStep(job, 5);
  v1::SetRecipeResponse set;
  ASSERT_TRUE(Set(job, 1, "fprop", "bf16", &set).ok());
  const int64_t from = InEffect(bed_, job, 2).step();

  const absl::Status stale = Set(job, 1, "wgrad", "bf16", &set);
  EXPECT_EQ(stale.code(), StatusCode::kFailedPrecondition) << stale.message();
  EXPECT_THAT(stale.message(), HasSubstr("expected_revision"));
  const absl::Status unknown = Set(job, 2, "fprop", "fp3", &set);
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument) << unknown.message();
  EXPECT_THAT(unknown.message(), HasSubstr("fp3"));
  EXPECT_EQ(Set(job, 2, "fpropp", "bf16", &set).code(), StatusCode::kInvalidArgument);

  const auto revisions = bed_.Revisions(job);
  ASSERT_EQ(revisions.size(), 2u);
  EXPECT_EQ(revisions[1].first_step(), from);
  const int64_t made = EventsOf(bed_.EventLog(job), "step").back().at("step");
  bed_.ExpectStep(job, made + 20);
  for (const auto& [step, revision] : RevisionOfSteps(job)) {
    EXPECT_EQ(revision, step < from ? 1 : 2) << "step " << step;
  }
}

// The heartbeat interval is so long that a timely event cannot have waited for a heartbeat.
class SwitchTimes : public testing::TestWithParam<int> {
 protected:
  static constexpr int kSwitches = 50;
  static constexpr int64_t kBeatMs = 60'000;

  SwitchTimes()
      : bed_({.workers = GetParam(),
              .slots = 1,
              .lease = std::chrono::minutes(10),
              .worker_flags = {"--beat-ms", absl::StrCat(kBeatMs)}}) {}

  // When each step was made, in milliseconds since 1970.
  std::map<int64_t, int64_t> StepTimes(const std::string& job) {
    std::map<int64_t, int64_t> times;
    for (const json& step : EventsOf(bed_.EventLog(job), "step")) {
      absl::Time at;
      std::string error;
      EXPECT_TRUE(
          absl::ParseTime(absl::RFC3339_full, step.at("time").get<std::string>(), &at, &error))
          << error;
      times[step.at("step")] = absl::ToUnixMillis(at);
    }
    return times;
  }
  static int64_t Percentile(std::vector<int64_t> values, int percent) {
    std::sort(values.begin(), values.end());
    return values[(values.size() - 1) * static_cast<size_t>(percent) / 100];
  }

  ClusterBed bed_;
};

TEST_P(SwitchTimes, TheReplyNamesTheStepAndTheEventDoesNotWaitForAHeartbeat) {
  const std::string job = bed_.Submit({.ranks = GetParam(), .steps = 1'000'000, .every = 0});
  EXPECT_EQ(InEffect(bed_, job, 1).revision(), 1);
  std::vector<int64_t> off_by;
  std::vector<v1::JobEvent> events;
  for (int i = 0; i < kSwitches; ++i) {
    const v1::SetRecipeResponse response =
        bed_.Ask(kSetRecipe, RecipeChange(job, "fprop", i % 2 == 0 ? "bf16" : "nvfp4"));
    ASSERT_GT(response.revision(), 1);
    events.push_back(InEffect(bed_, job, response.revision()));
    ASSERT_EQ(events.back().revision(), response.revision());
    off_by.push_back(std::abs(response.first_step() - events.back().step()));
  }
  const std::map<int64_t, int64_t> made = StepTimes(job);
  std::vector<int64_t> late_ms;
  for (const v1::JobEvent& event : events) {
    // A step begins when the previous one has been made.
    const auto before = made.find(event.step() - 1);
    ASSERT_TRUE(before != made.end()) << event.step();
    late_ms.push_back(event.time_unix_ms() - before->second);
  }
  EXPECT_LE(Percentile(off_by, 100), 2);
  EXPECT_LT(Percentile(late_ms, 100), kBeatMs / 2);
  std::printf(
      "%d worker(s), %d switches, a step every %.1f ms:\n"
      "  event after the step began   p50 %ld ms  p99 %ld ms  max %ld ms\n"
      "  replied minus actual step    p50 %ld     p99 %ld     max %ld\n",
      GetParam(), kSwitches,
      static_cast<double>(made.rbegin()->second - made.begin()->second) /
          static_cast<double>(made.size() - 1),
      Percentile(late_ms, 50), Percentile(late_ms, 99), Percentile(late_ms, 100),
      Percentile(off_by, 50), Percentile(off_by, 99), Percentile(off_by, 100));
}

INSTANTIATE_TEST_SUITE_P(Workers, SwitchTimes, testing::Values(1, 2),
                         testing::PrintToStringParamName());

TEST(ManyChanges,
     HundredsOfChangesRunAsTheHistoryRecordsAcrossKillsWithTheLossesOfThePlannedChanges) {
  ClusterBed bed({.workers = 1, .slots = 1});
  const TinyJob spec = {.steps = 100'000, .every = 25};
  constexpr int kChanges = 300;
  const auto change = [&bed](const std::string& job, const std::string& value,
                             const std::string& at) {
    (void)bed.Ask(kSetRecipe, RecipeChange(job, "fprop", value, at));
  };

  const std::string changed = bed.Submit(spec);
  bed.ExpectStep(changed, 30);
  for (int i = 0; i < kChanges; ++i) {
    change(changed, i % 2 == 0 ? "bf16" : "nvfp4", "now");
    if (i == kChanges / 3) {
      const auto ranks = bed.LiveRanks();
      ASSERT_EQ(ranks.size(), 1u) << bed.Story(changed);
      SignalProcess(ranks[0].process, SIGKILL);
    }
    if (i == 2 * kChanges / 3) {
      bed.Kill("coordinator");
      bed.Restart("coordinator");
    }
  }
  // The last change is in effect once the ranks are well past it.
  bed.ExpectStep(changed, bed.Describe(changed).next_step() + 60);

  // The whole history, page by page.
  std::vector<v1::RecipeRevision> history;
  v1::ListRecipeRevisionsRequest request;
  request.set_job(changed);
  request.set_all(true);
  v1::ListRecipeRevisionsResponse page;
  do {
    ASSERT_TRUE(bed.Call(kListRecipeRevisions, request, &page).ok());
    history.insert(history.end(), page.revisions().begin(), page.revisions().end());
    request.set_after_number(history.back().number());
  } while (page.more());
  // A change made without ranks takes effect at the checkpoint: later changes are rebased on it,
  // under new numbers.
  ASSERT_GE(history.size(), kChanges + 1u);
  for (size_t i = 0; i < history.size(); ++i) {
    ASSERT_EQ(history[i].number(), static_cast<int64_t>(i) + 1);
  }
  EXPECT_GT(page.archived(), 0);
  const int64_t last = history.back().first_step() + 20;
  // Each step ran under a revision that was in effect by the history.
  std::vector<v1::RecipeRevision> held;
  for (const v1::RecipeRevision& revision : history) {
    if (revision.confirmed()) held.push_back(revision);
  }
  const auto log = bed.EventLog(changed);
  std::map<int64_t, int64_t> ran;
  for (const json& step : EventsOf(log, "step")) ran[step.at("step")] = step.at("revision");
  for (const auto& [step, revision] : ran) {
    if (step > last) break;
    int64_t by_history = 0;
    for (const v1::RecipeRevision& one : held) {
      if (one.first_step() <= step) by_history = one.number();
    }
    EXPECT_EQ(revision, by_history) << "step " << step;
  }

  // The same changes, planned before the first step of another job, while a third job has the slot.
  const std::string blocker = bed.Submit({.name = "blocker", .steps = 100'000});
  (void)bed.AskAbout(changed, kKillJob);
  bed.ExpectStep(blocker, 1);
  const std::string planned = bed.Submit(spec);
  for (const v1::RecipeRevision& revision : held) {
    if (revision.number() == 1) continue;
    change(planned, revision.recipe().set(0).value(), absl::StrCat("step:", revision.first_step()));
  }
  (void)bed.AskAbout(blocker, kKillJob);
  bed.ExpectStep(planned, last + 1);
  auto changed_losses = LossBits(log);
  auto planned_losses = LossBits(bed.EventLog(planned));
  std::erase_if(changed_losses, [last](const auto& loss) { return loss.first > last; });
  std::erase_if(planned_losses, [last](const auto& loss) { return loss.first > last; });
  ASSERT_EQ(changed_losses.size(), static_cast<size_t>(last + 1));
  EXPECT_EQ(FirstDifference(changed_losses, planned_losses), "") << bed.Story(planned);
}

INSTANTIATE_TEST_SUITE_P(Gangs, LiveSwitch, testing::Values(std::tuple(1, 4), std::tuple(2, 2)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "WorkersOf",
                                               std::get<1>(info.param));
                         });

}  // namespace
}  // namespace nibble
