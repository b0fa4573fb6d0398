#include "tests/cluster/accepted_job.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/cluster/job_watch.h"
#include "tests/processes/processes.h"

namespace nibble {
namespace {

using nlohmann::json;

// The submitted job, with the changes at the steps at which they took effect.
TinyJob WithTimeline(const AcceptedJob& accepted, const std::vector<v1::RecipeRevision>& timeline) {
  std::map<int64_t, std::map<std::string, std::string>> by_step;
  for (const v1::RecipeRevision& revision : timeline) {
    auto& fields = by_step[revision.first_step()];
    fields.clear();
    for (const v1::FieldSetting& setting : revision.recipe().set()) {
      fields[setting.field()] = setting.value();
    }
  }
  const auto words = [](const std::map<std::string, std::string>& fields) {
    return absl::StrCat("{", absl::StrJoin(fields, ", ", absl::PairFormatter(": ")), "}");
  };
  TinyJob job = accepted.spec;
  if (!by_step.at(0).empty()) {
    job.recipe = absl::StrCat("{preset: nvfp4, set: ", words(by_step.at(0)), "}");
  }
  by_step.erase(0);
  if (!by_step.empty()) job.more = "changes:\n";
  for (const auto& [step, fields] : by_step) {
    absl::StrAppend(&job.more, "  - {at: step:", step, ", set: ", words(fields), "}\n");
  }
  return job;
}

// The timeline from the ranks' own log: a revision wherever a step's recipe differs from that of
// the step before.
std::vector<v1::RecipeRevision> TimelineOfLog(const std::vector<json>& log) {
  std::map<int64_t, std::string> recipes;  // by revision, at this position of the log
  std::map<int64_t, std::string> run;      // by step
  for (const json& event : log) {
    if (event.at("event") == "revision") recipes[event.at("revision")] = event.at("recipe");
    if (event.at("event") == "step") run[event.at("step")] = recipes.at(event.at("revision"));
  }
  std::vector<v1::RecipeRevision> timeline;
  std::string before;
  for (const auto& [step, recipe] : run) {
    if (recipe == before) continue;
    v1::RecipeRevision& revision = timeline.emplace_back();
    revision.set_first_step(step);
    const json parsed = json::parse(recipe);
    for (const json& one : parsed.at("set")) {
      v1::FieldSetting& setting = *revision.mutable_recipe()->add_set();
      setting.set_field(one.at("field"));
      setting.set_value(one.at("value"));
    }
    before = recipe;
  }
  return timeline;
}

int64_t RevisionAt(const std::vector<v1::RecipeRevision>& timeline, int64_t step) {
  int64_t number = 0;
  for (const v1::RecipeRevision& revision : timeline) {
    if (revision.first_step() <= step) number = revision.number();
  }
  return number;
}

}  // namespace

void AcceptedJobCheck::Run(const AcceptedJob& accepted) {
  SCOPED_TRACE(accepted.job);
  bed_.ExpectState(accepted.job, v1::JOB_STATE_SUCCEEDED);
  CheckLosses(accepted);
  CheckLast(accepted);
  // A restored store lacks what was acknowledged after the backup.
  if (accepted.restored) return;
  CheckRevisions(accepted);
  CheckCheckpoints(accepted);
}

void AcceptedJobCheck::CheckLosses(const AcceptedJob& accepted) {
  const std::vector<json> log = bed_.EventLog(accepted.job);
  const std::vector<v1::RecipeRevision> timeline = bed_.Revisions(accepted.job);
  const auto losses = LossBits(log);
  ASSERT_EQ(losses.size(), static_cast<size_t>(accepted.spec.steps));
  // A backup may lack changes that ranks ran after it was made; the ranks' log has them.
  const bool history_may_lack = accepted.restored && accepted.changes_now;
  const TinyJob as_run = WithTimeline(accepted, history_may_lack ? TimelineOfLog(log) : timeline);
  EXPECT_EQ(FirstDifference(losses, bed_.UndisturbedLosses(as_run)), "")
      << as_run.Yaml("corpus.txt") << bed_.Story(accepted.job);
  std::map<int64_t, int64_t> revisions;
  for (const json& step : EventsOf(log, "step")) {
    const int64_t number = step.at("step");
    revisions[number] = step.at("revision");
    if (accepted.changes_now) continue;
    // In every attempt, not only in the last one that ran the step.
    EXPECT_EQ(std::bit_cast<uint64_t>(step.at("loss").get<double>()), losses.at(number))
        << "step " << number << " has two different losses\n"
        << bed_.Story(accepted.job);
  }
  if (history_may_lack) return;
  for (const auto& [step, revision] : revisions) {
    EXPECT_EQ(revision, RevisionAt(timeline, step)) << "step " << step << "\n"
                                                    << bed_.Story(accepted.job);
  }
}

void AcceptedJobCheck::CheckRevisions(const AcceptedJob& accepted) {
  const JobWatch::Seen seen = bed_.watch().Of(accepted.job);
  const auto kept = bed_.Revisions(accepted.job);
  for (const auto& [number, first_step] : accepted.revisions) {
    const std::string text = absl::StrCat("revision ", number, " accepted, takes effect at step ");
    EXPECT_TRUE(
        std::any_of(seen.events.begin(), seen.events.end(),
                    [&](const auto& event) { return absl::StartsWith(event.second.text(), text); }))
        << text << " is not in the history\n"
        << bed_.Story(accepted.job);
    bool present = false;
    for (const v1::RecipeRevision& revision : kept) present |= revision.number() == number;
    // A later revision with an earlier first step supersedes a pending one, which gets a new
    // number.
    present |= accepted.revisions.rbegin()->first > number;
    EXPECT_TRUE(present) << "revision " << number << " from step " << first_step << " is missing\n"
                         << bed_.Story(accepted.job);
  }
}

void AcceptedJobCheck::CheckCheckpoints(const AcceptedJob& accepted) {
  const JobWatch::Seen seen = bed_.watch().Of(accepted.job);
  std::map<int64_t, std::set<int64_t>> attempts_of_step;
  int64_t requested = 0;
  // The first attempt that resumed before the newest checkpoint, which no worker had.
  int64_t went_back = INT64_MAX;
  for (const auto& [number, event] : seen.events) {
    if (event.kind() == v1::JOB_EVENT_KIND_ATTEMPT &&
        absl::StrContains(event.text(), "because the checkpoint")) {
      went_back = std::min(went_back, event.attempt());
    }
    if (event.kind() != v1::JOB_EVENT_KIND_CHECKPOINT) continue;
    if (absl::StartsWith(event.text(), "committed")) {
      attempts_of_step[event.step()].insert(event.attempt());
    }
    requested += absl::StartsWith(event.text(), "requested");
  }
  for (const auto& [number, event] : seen.events) {
    ran_superseded_ += absl::StrContains(event.text(), "ranks had switched before");
  }
  EXPECT_EQ(requested, accepted.checkpoints) << bed_.Story(accepted.job);
  EXPECT_FALSE(attempts_of_step.empty());
  for (const auto& [step, attempts] : attempts_of_step) {
    EXPECT_TRUE(attempts.size() == 1 || *attempts.rbegin() >= went_back)
        << "step " << step << " was committed by several attempts\n"
        << bed_.Story(accepted.job);
  }
}

void AcceptedJobCheck::CheckLast(const AcceptedJob& accepted) {
  const auto kept = bed_.Checkpoints(accepted.job);
  ASSERT_FALSE(kept.empty());
  EXPECT_EQ(kept[0].ref().step(), accepted.spec.steps);
  EXPECT_EQ(kept[0].state(), v1::CHECKPOINT_STATE_COMMITTED);
}

}  // namespace nibble
