// `nibble job sensitivity` on a cluster: forks of a real job find the layers that were harmed.
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kNotFinished = 101;
constexpr int64_t kForkedStep = 120;

// A hybrid that learns in MXFP8, whose error is too small to see in so few steps. From the step of
// the checkpoint on, block 0 has one FP4 scale per token, rounded stochastically: an error of some
// tens of percent in each of its GEMMs.
std::string HarmedJob(int64_t steps) {
  return absl::StrCat(
      "name: harmed\nmodel: tiny-hybrid\nrecipe: mxfp8\n"
      "changes: [{at: step:",
      kForkedStep,
      ", layers: [{match: block 0, set: {all: fp4-token-channel, rounding: stochastic}}]}]\n"
      "data: {train: [/usr/share/common-licenses/GPL-3], sequence: 64, validation_fraction: 0.1}\n"
      "training: {steps: ",
      steps,
      ", batch: 4, seed: 1, validate_every: 0}\n"
      "optimizer: {lr: 0.004, warmup_steps: 5, schedule: constant}\n"
      "metrics: {log_every: 1, precision_every: 10}\n"
      "checkpoints: {every: ",
      kForkedStep, ", keep_last: 3}\nresources: {threads: 1, device: ", TestDevice(), "}\n");
}

class Sensitivity : public testing::Test {
 protected:
  // Standard output only.
  ShellResult Nibble(const std::string& arguments) {
    return Shell(absl::StrCat(NibbleProgram(), " job sensitivity ", arguments, " --server ",
                              bed_.address(), " 2>>", bed_.root(), "/said"));
  }
  std::string Said() const { return TextOf(bed_.root() + "/said"); }
  std::vector<v1::Job> Forks() {
    const v1::ListJobsResponse all = bed_.Ask(kListJobs, v1::ListJobsRequest());
    std::vector<v1::Job> forks;
    for (const v1::Job& job : all.jobs()) {
      if (absl::StartsWith(job.name(), "sensitivity.")) forks.push_back(job);
    }
    return forks;
  }
  std::vector<std::string> Pins(const std::string& job) {
    std::vector<std::string> pins;
    for (const v1::Checkpoint& checkpoint : bed_.Checkpoints(job)) {
      pins.insert(pins.end(), checkpoint.pins().begin(), checkpoint.pins().end());
    }
    return pins;
  }

  ClusterBed bed_{{.workers = 2, .slots = 1}};
};

TEST_F(Sensitivity, RanksAHarmedBlockFirstByManyStandardErrors) {
  const std::string job = bed_.SubmitSpec(HarmedJob(kForkedStep + 40));
  bed_.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const std::string command = absl::StrCat(job, " --steps 40 --seeds 10");
  const ShellResult result = Nibble(absl::StrCat(command, " -o json"));
  ASSERT_EQ(result.code, 0) << Said();
  const json found = result.json();
  ASSERT_TRUE(found.is_object()) << result.text;
  EXPECT_EQ(found.at("step"), kForkedStep);
  const json& groups = found.at("groups");
  ASSERT_EQ(groups.size(), 7u) << result.text;
  EXPECT_EQ(groups[0].at("group"), "block 0") << result.text;
  EXPECT_EQ(groups[0].at("significant"), true) << result.text;
  EXPECT_EQ(groups[0].at("repeats"), 10);
  const double best = groups[0].at("improvement");
  for (size_t i = 1; i < groups.size(); ++i) {
    const double noise = std::hypot(groups[0].at("standard_error").get<double>(),
                                    groups[i].at("standard_error").get<double>());
    EXPECT_GT(best - groups[i].at("improvement").get<double>(), 5 * noise) << result.text;
  }
  EXPECT_EQ(found.at("suggestion"), "block 0");
  EXPECT_EQ(found.at("command"),
            absl::StrCat("nibble job fork ", job, " --at-step 120 --layer 'block 0:all=bf16'"));

  // Control, bound and seven blocks, ten times; none has written a checkpoint.
  const std::vector<v1::Job> forks = Forks();
  EXPECT_THAT(forks, SizeIs(90));
  for (const v1::Job& fork : forks) {
    EXPECT_EQ(fork.state(), v1::JOB_STATE_SUCCEEDED) << fork.id();
    EXPECT_EQ(fork.next_step(), kForkedStep + 40) << fork.id();
    EXPECT_EQ(fork.checkpoint_step(), -1) << fork.id();
    EXPECT_EQ(fork.scheduling().priority(), -100) << fork.id();
  }
  EXPECT_THAT(Pins(job), IsEmpty());

  // Again: the same result from the same forks, also if the coordinator has forgotten their losses.
  bed_.Kill("coordinator");
  bed_.Restart("coordinator");
  const ShellResult again = Nibble(absl::StrCat(command, " -o json"));
  EXPECT_EQ(again.text, result.text) << Said();
  EXPECT_THAT(Forks(), SizeIs(90));
  EXPECT_THAT(Nibble(absl::StrCat(command, " -o csv")).text,
              StartsWith("group,layers,repeats,improvement,standard_error,significant,share_of_gap,"
                         "share_standard_error,added_gemm_time\nblock 0,2,10,"));
  EXPECT_THAT(Nibble(command).text, HasSubstr("everything in bf16"));

  // The precision statistics show the same block without a fork.
  const json statistics = Nibble(absl::StrCat(job, " --statistics -o json")).json();
  ASSERT_TRUE(statistics.is_object()) << Said();
  EXPECT_THAT(statistics.at("layers")[0].at("layer").get<std::string>(), StartsWith("blocks.0."));
  EXPECT_THAT(statistics.at("layers")[1].at("layer").get<std::string>(), StartsWith("blocks.0."));
  EXPECT_THAT(statistics.at("keep").get<std::vector<std::string>>(),
              IsSupersetOf<std::string>({statistics.at("layers")[0].at("layer"),
                                         statistics.at("layers")[1].at("layer")}));
}

TEST_F(Sensitivity, AnInterruptedExperimentContinuesAndTheWinnerIsAppliedToTheJob) {
  const std::string job = bed_.SubmitSpec(HarmedJob(1'000'000));
  bed_.ExpectStep(job, kForkedStep + 1);
  // Retention must not delete the checkpoint before the command has pinned it.
  bed_.AskAbout(job, kPauseJob, v1::PauseJobRequest());
  bed_.ExpectState(job, v1::JOB_STATE_PAUSED);
  const std::string command = absl::StrCat(job, " --groups 'block 0,mlp' --steps 20 --seeds 3");
  // One slot is left beside the job.
  const ShellResult first = Nibble(absl::StrCat(command, " --at-step 120 --timeout 2"));
  EXPECT_EQ(first.code, kNotFinished) << Said();
  EXPECT_THAT(first.text, IsEmpty());
  std::set<std::string> begun;
  for (const v1::Job& fork : Forks()) begun.insert(fork.name());
  EXPECT_THAT(begun, Not(IsEmpty()));
  EXPECT_THAT(Pins(job), SizeIs(1));

  const ShellResult second = Nibble(absl::StrCat(command, " --apply -o json"));
  ASSERT_EQ(second.code, 0) << Said();
  const json found = second.json();
  ASSERT_TRUE(found.is_object()) << second.text;
  EXPECT_EQ(found.at("step"), kForkedStep);
  EXPECT_EQ(found.at("suggestion"), "block 0") << second.text;
  EXPECT_EQ(found.at("command"),
            absl::StrCat("nibble recipe set ", job, " --layer 'block 0:all=bf16'",
                         " --reason 'sensitivity at step 120'"));
  EXPECT_THAT(Forks(), SizeIs(12));
  EXPECT_THAT(Pins(job), IsEmpty());
  EXPECT_THAT(Said(), HasSubstr("exist already"));
  const v1::RecipeRevision applied = bed_.Revisions(job).back();
  EXPECT_EQ(applied.reason(), "sensitivity at step 120");
  EXPECT_EQ(applied.recipe().layers().rbegin()->match(), "block 0");
  EXPECT_EQ(bed_.Describe(job).state(), v1::JOB_STATE_PAUSED);

  // Forks of another experiment are stopped.
  EXPECT_EQ(
      Nibble(absl::StrCat(job, " --groups mamba --at-step 120 --steps 5000 --timeout 1")).code,
      kNotFinished);
  const ShellResult stopped = Nibble(absl::StrCat(job, " --stop"));
  EXPECT_EQ(stopped.code, 0) << Said();
  EXPECT_THAT(stopped.text, HasSubstr("4 unfinished forks")) << Said();
  EXPECT_THAT(Pins(job), IsEmpty());
}

}  // namespace
}  // namespace nibble
