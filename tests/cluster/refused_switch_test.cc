// A recipe change that ranks cannot make: they refuse it and train on unchanged.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using absl::StatusCode;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kSteps = 320;

TinyJob Job(const std::string& format) {
  return {.ranks = 2,
          .steps = kSteps,
          .every = 20,
          .sequence = 128,
          .batch = 16,
          .recipe = absl::StrCat("{preset: nvfp4, set: {all: ", format, "}}")};
}

class RefusedSwitch : public testing::Test {
 protected:
  RefusedSwitch() : bed_({.workers = 2, .slots = 1}) {}

  bool Fits(TinyJob job, int64_t memory_mib) {
    job.steps = 4;
    job.memory_mib = memory_mib;
    const std::string directory = absl::StrCat(bed_.root(), "/fits");
    std::filesystem::create_directories(directory);
    std::ofstream(directory + "/spec.yaml")
        << job.Yaml(bed_.corpus()) << "output: {directory: " << directory << "/run}\n";
    return Shell(absl::StrCat(TestPrograms().trainer, " --quiet --fresh --spec ", directory,
                              "/spec.yaml 2>", directory, "/log"))
               .code == 0;
  }
  // The MiB that a rank needs.
  int64_t Need(const TinyJob& job) {
    int64_t too_few = 0, enough = 512;
    EXPECT_TRUE(Fits(job, enough));
    while (enough - too_few > 1) {
      const int64_t middle = (enough + too_few) / 2;
      (Fits(job, middle) ? enough : too_few) = middle;
    }
    return enough;
  }
  absl::Status Set(const std::string& job, const std::string& field, const std::string& value,
                   v1::SetRecipeResponse* response) {
    return bed_.Call(kSetRecipe, RecipeChange(job, field, value), response);
  }
  void ExpectEvent(const std::string& job, const std::string& text) {
    SCOPED_TRACE(text);
    (void)bed_.ExpectEvent(
        job, [&text](const v1::JobEvent& event) { return absl::StartsWith(event.text(), text); });
  }

  ClusterBed bed_;
};

TEST_F(RefusedSwitch, AChangeThatExceedsMemoryLeavesTheRunUnchangedAlsoAcrossAKill) {
  const int64_t plain = Need(Job("bf16")), quantised = Need(Job("nvfp4"));
  ASSERT_NE(plain, quantised) << "the test needs recipes that differ in memory";
  const bool grows = quantised > plain;
  TinyJob spec = Job(grows ? "bf16" : "nvfp4");
  const TinyJob undisturbed = spec;
  spec.memory_mib = std::min(plain, quantised);
  const std::string job = bed_.Submit(spec);
  bed_.ExpectStep(job, 5);

  v1::SetRecipeResponse set;
  const absl::Status refused = Set(job, "all", grows ? "nvfp4" : "bf16", &set);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused.message();
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("revision: 2 was refused"), HasSubstr("resources.memory_mib")));
  ExpectEvent(job, "revision 2 refused, revision 1 stays in effect: rank ");
  const ShellResult history =
      Shell(absl::StrCat(NibbleProgram(), " recipe history ", job, " --server ", bed_.address()));
  EXPECT_THAT(history.text, HasSubstr("refused: rank "));

  // After a checkpoint that was taken after the refusal, and before the next one.
  const int64_t made = EventsOf(bed_.EventLog(job), "step").back().at("step");
  bed_.ExpectStep(job, made / 20 * 20 + 45);
  const auto ranks = bed_.LiveRanks();
  ASSERT_EQ(ranks.size(), 2u) << bed_.Story(job);
  SignalProcess(ranks[0].process, SIGKILL);
  bed_.ExpectSeen(job, [](const JobWatch::Seen& seen) {
    return seen.job.attempt().number() >= 2 && seen.job.state() == v1::JOB_STATE_RUNNING;
  });

  // A change that needs no more memory is made.
  ASSERT_TRUE(Set(job, "all", grows ? "bf16" : "nvfp4", &set).ok());
  EXPECT_EQ(set.revision(), 3);
  ExpectEvent(job, "revision 3 in effect from step ");
  bed_.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(bed_.Describe(job).attempts(), 2) << bed_.Story(job);

  bed_.ExpectUndisturbedLosses(job, undisturbed);
  for (const json& step : EventsOf(bed_.EventLog(job), "step")) {
    EXPECT_NE(step.at("revision"), 2) << step;
  }
  const auto revisions = bed_.Revisions(job);
  ASSERT_EQ(revisions.size(), 3u);
  EXPECT_NE(revisions[1].refused(), "");
  EXPECT_FALSE(revisions[1].confirmed());
  const auto checkpoints = bed_.Checkpoints(job);
  ASSERT_FALSE(checkpoints.empty());
  const ShellResult said = Shell(absl::StrCat(NibbleProgram(), " checkpoint describe ", bed_.root(),
                                              "/cluster/worker-1/jobs/", job, "/checkpoints@",
                                              checkpoints[0].ref().step(), " -o json"));
  const json stored = said.json().at("recipe_timeline").at("revisions");
  ASSERT_EQ(stored.size(), 3u) << stored;
  EXPECT_EQ(stored[1].at("refused"), revisions[1].refused());
}

}  // namespace
}  // namespace nibble
