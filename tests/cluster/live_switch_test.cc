// Precision that changes while a gang runs: everybody agrees on the step, and keeps to it.
#include <signal.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cluster/detached_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using Stub = v1::Coordinator::Stub;
using grpc::StatusCode;
using nlohmann::json;
using testing::HasSubstr;

// Workers and slots of each.
class LiveSwitch : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  LiveSwitch() : bed_({.workers = std::get<0>(GetParam()), .slots = std::get<1>(GetParam())}) {}

  grpc::Status Set(const std::string& job, int64_t expected, const std::string& field,
                   const std::string& value, v1::SetRecipeResponse* response) {
    v1::SetRecipeRequest request;
    request.set_job(job);
    request.set_expected_revision(expected);
    v1::FieldSetting& setting = *request.mutable_change()->add_set();
    setting.set_field(field);
    setting.set_value(value);
    request.set_at("now");
    request.set_reason("test");
    return bed_.Call(&Stub::SetRecipe, request, response);
  }
  // The step since which ranks have run under the revision, as the job's event tells.
  int64_t InForceFrom(const std::string& job, int64_t revision) {
    int64_t from = -1;
    EXPECT_TRUE(bed_.watch().Await(
        job,
        [&](const JobWatch::Seen& seen) {
          for (const auto& [number, event] : seen.events) {
            if (event.kind() == v1::JOB_EVENT_KIND_RECIPE && event.revision() == revision &&
                absl::StrContains(event.text(), "in force")) {
              from = event.step();
            }
          }
          return from >= 0;
        },
        kPatience))
        << bed_.Story(job);
    return from;
  }
  // Under which revision each step ran, whoever ran it; a test failure where two say otherwise.
  std::map<int64_t, int64_t> RevisionOfSteps(const std::string& job) {
    std::map<int64_t, int64_t> revisions;
    for (const json& step : EventsOf(bed_.EventLog(job), "step")) {
      const auto [at, added] = revisions.try_emplace(step.at("step"), step.at("revision"));
      EXPECT_EQ(at->second, step.at("revision")) << "step " << at->first;
    }
    return revisions;
  }

  // What the newest checkpoint has stored of the switch.
  void ExpectTimelineOfCheckpoint(const std::string& job, int64_t from) {
    const auto checkpoints = bed_.Checkpoints(job);
    ASSERT_FALSE(checkpoints.empty()) << bed_.Story(job);
    ASSERT_GT(checkpoints[0].ref().step(), from);
    const Said said = Shell(absl::StrCat(NibbleProgram(), " checkpoint describe ", bed_.root(),
                                         "/cluster/worker-1/jobs/", job, "/checkpoints@",
                                         checkpoints[0].ref().step(), " -o json"));
    ASSERT_EQ(said.code, 0) << said.text;
    const json checkpoint = said.json();
    const json& timeline = checkpoint.at("recipe_timeline");
    const json& revisions = timeline.at("revisions");
    ASSERT_EQ(revisions.size(), 2u);
    EXPECT_EQ(revisions[1].at("number"), 2);
    EXPECT_EQ(revisions[1].at("first_step"), from);
  }

  ClusterBed bed_;
};

TEST_P(LiveSwitch, ItIsInForceWithinTwoStepsAndStaysAtItsStepThroughAKill) {
  const std::string job =
      bed_.Submit({.ranks = 4, .steps = 100'000, .every = 25, .sequence = 64, .batch = 16});
  bed_.ExpectStep(job, 30);
  v1::SetRecipeResponse set;
  const grpc::Status changed = Set(job, 1, "fprop", "bf16", &set);
  ASSERT_TRUE(changed.ok()) << changed.error_message();
  // The step that is being made when the answer is here.
  const auto made = EventsOf(bed_.EventLog(job), "step");
  const int64_t at_answer = static_cast<int64_t>(made.back().at("step")) + 1;
  EXPECT_EQ(set.revision(), 2);
  const int64_t from = InForceFrom(job, 2);
  EXPECT_LE(from, at_answer + 2);
  EXPECT_GE(from, set.first_step());

  // A kill right behind the switch throws ranks back before it, in most cases.
  const auto ranks = bed_.LiveRanks();
  ASSERT_EQ(ranks.size(), 4u) << bed_.Story(job);
  SignalProcess(ranks[3].process, SIGKILL);
  bed_.ExpectStep(job, from + 60);
  EXPECT_TRUE(bed_.watch().Await(
      job, [](const JobWatch::Seen& seen) { return seen.job.attempt().number() >= 2; }, kPatience))
      << bed_.Story(job);
  bed_.ExpectStep(job, from + 100);

  // Whoever says it says the same step: the event, the samples, the log of rank 0.
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

TEST_P(LiveSwitch, WhatIsStaleOrWrongChangesNothing) {
  const std::string job = bed_.Submit({.ranks = 4, .steps = 100'000});
  bed_.ExpectStep(job, 5);
  v1::SetRecipeResponse set;
  ASSERT_TRUE(Set(job, 1, "fprop", "bf16", &set).ok());
  const int64_t from = InForceFrom(job, 2);

  const grpc::Status stale = Set(job, 1, "wgrad", "bf16", &set);
  EXPECT_EQ(stale.error_code(), StatusCode::FAILED_PRECONDITION) << stale.error_message();
  EXPECT_THAT(stale.error_message(), HasSubstr("expected_revision"));
  const grpc::Status unknown = Set(job, 2, "fprop", "fp3", &set);
  EXPECT_EQ(unknown.error_code(), StatusCode::INVALID_ARGUMENT) << unknown.error_message();
  EXPECT_THAT(unknown.error_message(), HasSubstr("fp3"));
  EXPECT_EQ(Set(job, 2, "fpropp", "bf16", &set).error_code(), StatusCode::INVALID_ARGUMENT);

  const auto revisions = bed_.Revisions(job);
  ASSERT_EQ(revisions.size(), 2u);
  EXPECT_EQ(revisions[1].first_step(), from);
  const int64_t made = EventsOf(bed_.EventLog(job), "step").back().at("step");
  bed_.ExpectStep(job, made + 20);
  for (const auto& [step, revision] : RevisionOfSteps(job)) {
    EXPECT_EQ(revision, step < from ? 1 : 2) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Gangs, LiveSwitch, testing::Values(std::tuple(1, 4), std::tuple(2, 2)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "WorkersOf",
                                               std::get<1>(info.param));
                         });

}  // namespace
}  // namespace nibble
