// The cause to which the end of an attempt is attributed, with real processes: an error in the spec
// fails the job at once and flags no worker; the death of a rank counts against its worker only.
#include <signal.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/process/process.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

v1::Worker DescribeWorker(ClusterBed& bed, const std::string& name) {
  v1::DescribeWorkerRequest request;
  request.set_worker(name);
  return bed.Ask(kDescribeWorker, request).worker();
}

// The job fails in its first attempt, with the field and the path, and no worker is flagged.
void ExpectSpecError(ClusterBed& bed, const std::string& job, const std::string& field,
                     const std::string& path) {
  bed.ExpectState(job, v1::JOB_STATE_FAILED);
  const v1::Job ended = bed.Describe(job);
  EXPECT_EQ(ended.attempts(), 1) << bed.Story(job);
  ASSERT_EQ(ended.recent_attempts_size(), 1);
  EXPECT_EQ(ended.recent_attempts(0).cause(), v1::FAILURE_CAUSE_SPEC) << bed.Story(job);
  EXPECT_TRUE(absl::StartsWith(ended.state_reason(), absl::StrCat(field, ": ", path)))
      << ended.state_reason();
  EXPECT_EQ(ended.blames_size(), 0) << bed.Story(job);
  for (const char* worker : {"worker-1", "worker-2"}) {
    EXPECT_EQ(DescribeWorker(bed, worker).flags_size(), 0) << worker;
  }
}

TEST(SpecError, AWrongDataPathATooSmallCorpusAndAnInvalidTokenizerFailTheJobAtOnce) {
  ClusterBed bed({.workers = 2, .slots = 1});
  const std::string nowhere = absl::StrCat(bed.root(), "/nowhere.txt");
  ExpectSpecError(bed, bed.SubmitSpec(TinyJob{.name = "path", .ranks = 2}.Yaml(nowhere)),
                  "data.train[0]", nowhere);

  const std::string small = absl::StrCat(bed.root(), "/small.txt");
  std::ofstream(small) << "ten bytes.";
  const std::string all_of_it =
      absl::StrReplaceAll(TinyJob{.name = "small", .ranks = 2}.Yaml(small),
                          {{"validation_fraction: 0.1", "validation_fraction: 0"}});
  ExpectSpecError(bed, bed.SubmitSpec(all_of_it), "data.train[0]", small);

  const std::string model = absl::StrCat(bed.root(), "/broken.model");
  std::ofstream(model) << "this is not a SentencePiece model";
  const std::string tokenizer = absl::StrReplaceAll(
      TinyJob{.name = "tokenizer", .ranks = 2}.Yaml(bed.corpus()),
      {{"validation_fraction: 0.1",
        absl::StrCat("validation_fraction: 0.1, tokenizer: sentencepiece, tokenizer_model: ",
                     model)}});
  ExpectSpecError(bed, bed.SubmitSpec(tokenizer), "data.tokenizer_model", model);

  // The workers are still used.
  const std::string job = bed.Submit({.name = "after", .ranks = 2, .steps = 20});
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
}

TEST(RankDeath, AKilledRankCountsAgainstItsWorkerAndNotAgainstThatOfItsPeer) {
  ClusterBed bed({.workers = 2, .slots = 1});
  const TinyJob spec = {.ranks = 2, .steps = 100'000, .every = 100'000};
  const std::string job = bed.Submit(spec);
  bed.ExpectStep(job, 10);
  const ClusterBed::Rank victim = bed.LiveRank(job, 1);
  ASSERT_EQ(victim.rank, 1);
  SignalProcess(victim.process, SIGKILL);
  bed.ExpectSeen(job, [](const JobWatch::Seen& seen) { return seen.job.attempt().number() >= 2; });
  const v1::Job again = bed.Describe(job);
  ASSERT_GE(again.recent_attempts_size(), 1);
  EXPECT_EQ(again.recent_attempts(0).cause(), v1::FAILURE_CAUSE_MACHINE) << bed.Story(job);
  ASSERT_EQ(again.blames_size(), 1) << bed.Story(job);
  EXPECT_EQ(again.blames(0).worker(), victim.worker) << bed.Story(job);
}

// Every update multiplies the weights by about a hundred, until they are infinite.
std::string WithBrokenUpdates(const ClusterBed& bed, const std::string& guards) {
  return absl::StrReplaceAll(
      TinyJob{.steps = 200, .more = absl::StrCat("guards: {", guards, "}\n")}.Yaml(bed.corpus()),
      {{"lr: 0.002", "lr: 10, weight_decay: 10"}});
}

TEST(Guard, PausesAJobThatSkipsEveryStepAsAuthorGuardAndFlagsNoWorker) {
  ClusterBed bed({.workers = 1, .slots = 1});
  const std::string job = bed.SubmitSpec(WithBrokenUpdates(bed, "max_skips: 5"));
  bed.ExpectState(job, v1::JOB_STATE_PAUSED);
  const v1::Job paused = bed.Describe(job);
  EXPECT_EQ(paused.state_author(), "guard");
  EXPECT_TRUE(absl::StrContains(paused.state_reason(), "guards.max_skips: 5 steps in a row"))
      << paused.state_reason();
  EXPECT_EQ(paused.attempts(), 1);
  EXPECT_EQ(paused.blames_size(), 0) << bed.Story(job);
}

TEST(Guard, RollsBackThenPausesIfThatDoesNotHelpOrFailsTheJob) {
  ClusterBed bed({.workers = 1, .slots = 1});
  const std::string back =
      bed.SubmitSpec(WithBrokenUpdates(bed, "max_skips: 5, after_skips: roll_back"));
  bed.ExpectState(back, v1::JOB_STATE_PAUSED);
  EXPECT_EQ(bed.Describe(back).attempts(), 3) << bed.Story(back);
  const std::string fail =
      bed.SubmitSpec(WithBrokenUpdates(bed, "max_skips: 5, after_skips: fail"));
  bed.ExpectState(fail, v1::JOB_STATE_FAILED);
  EXPECT_EQ(bed.Describe(fail).attempts(), 1) << bed.Story(fail);
  EXPECT_EQ(DescribeWorker(bed, "worker-1").flags_size(), 0);
}

TEST(Guard, RollsBackAJobWhichThenRunsWithItsLayersInBf16) {
  ClusterBed bed({.workers = 1, .slots = 1});
  // Every operand in 4 bits has a larger error, in the first step already.
  const std::string job = bed.SubmitSpec(
      TinyJob{.steps = 40,
              .precision_every = 10,
              .more = "guards: {relative_error: roll_back, relative_error_above: 0.01}\n"}
          .Yaml(bed.corpus()));
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const v1::Job done = bed.Describe(job);
  EXPECT_EQ(done.attempts(), 2) << bed.Story(job);
  EXPECT_EQ(done.recent_attempts(0).cause(), v1::FAILURE_CAUSE_GUARD_ROLLBACK) << bed.Story(job);
  EXPECT_EQ(done.latest_revision(), 2) << bed.Story(job);
  EXPECT_EQ(done.revision_in_force(), 2) << bed.Story(job);
  EXPECT_EQ(done.blames_size(), 0) << bed.Story(job);
  EXPECT_TRUE(absl::StrContains(bed.Story(job), "guard relative-error at step 0: roll_back"))
      << bed.Story(job);
}

}  // namespace
}  // namespace nibble
