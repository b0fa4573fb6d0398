// Jobs that are paused, cancelled, killed, preempted, resized or drained continue or end as
// requested, without losing steps.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/process/process.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using nlohmann::json;

// The job has made every step once, with the losses of an undisturbed run.
void ExpectUndisturbed(ClusterBed& bed, const std::string& job, const TinyJob& spec) {
  EXPECT_EQ(EventsOf(bed.EventLog(job), "step").size(), static_cast<size_t>(spec.steps));
  bed.ExpectUndisturbedLosses(job, spec);
}

TEST(PausedJob, ResumesInTheSameAttemptWithTheSameLosses) {
  ClusterBed bed({.workers = 1, .slots = 2});
  const TinyJob spec = {.ranks = 2, .steps = 300};
  const std::string job = bed.Submit(spec);
  bed.ExpectStep(job, 30);
  (void)bed.AskAbout(job, kPauseJob);
  bed.ExpectState(job, v1::JOB_STATE_PAUSED);
  const auto ranks = bed.LiveRanks();
  ASSERT_EQ(ranks.size(), 2u) << bed.Story(job);
  const int64_t paused_at = EventsOf(bed.EventLog(job), "step").back().at("step");
  EXPECT_LT(paused_at + 1, spec.steps);
  EXPECT_EQ(bed.Describe(job).next_step(), paused_at + 1);

  (void)bed.AskAbout(job, kResumeJob);
  bed.ExpectStep(job, paused_at + 1);
  const auto again = bed.LiveRanks();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].process, ranks[0].process);
  EXPECT_EQ(again[1].process, ranks[1].process);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(bed.Describe(job).attempts(), 1);
  ExpectUndisturbed(bed, job, spec);
}

TEST(PausedJob, APausedPendingJobHasNoRanksAndRunsWhenResumed) {
  ClusterBed bed({.workers = 1});
  const std::string first = bed.Submit({.steps = 100'000});
  bed.ExpectStep(first, 1);
  const TinyJob spec = {.name = "second", .steps = 50};
  const std::string second = bed.Submit(spec);
  EXPECT_EQ(bed.AskAbout(second, kPauseJob).job().state(), v1::JOB_STATE_PAUSED);
  (void)bed.AskAbout(first, kKillJob);
  (void)bed.AskAbout(second, kResumeJob);
  bed.ExpectState(second, v1::JOB_STATE_SUCCEEDED);
  ExpectUndisturbed(bed, second, spec);
}

TEST(CancelledJob, TakesALastCheckpointAtItsCurrentStep) {
  ClusterBed bed({.workers = 1, .slots = 2});
  const std::string job = bed.Submit({.ranks = 2, .steps = 100'000, .every = 100'000});
  bed.ExpectStep(job, 30);
  (void)bed.AskAbout(job, kCancelJob);
  bed.ExpectState(job, v1::JOB_STATE_CANCELLED);
  const int64_t last = EventsOf(bed.EventLog(job), "step").back().at("step");
  const auto checkpoints = bed.Checkpoints(job);
  ASSERT_EQ(checkpoints.size(), 1u) << bed.Story(job);
  EXPECT_EQ(checkpoints[0].ref().step(), last + 1);
  EXPECT_EQ(checkpoints[0].state(), v1::CHECKPOINT_STATE_COMMITTED);
}

TEST(KilledJob, EndsAtOnceAndLeavesNoRank) {
  ClusterBed bed({.workers = 1, .slots = 2});
  const std::string job = bed.Submit({.ranks = 2, .steps = 100'000, .every = 100'000});
  bed.ExpectStep(job, 5);
  const auto ranks = bed.LiveRanks();
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(bed.AskAbout(job, kKillJob).job().state(), v1::JOB_STATE_CANCELLED);
  for (const auto& rank : ranks) EXPECT_TRUE(AwaitAnyEnd({rank.process}, kPatience));
  EXPECT_TRUE(bed.Checkpoints(job).empty());
  // Its slots are free.
  const TinyJob next = {.name = "next", .ranks = 2, .steps = 20};
  bed.ExpectState(bed.Submit(next), v1::JOB_STATE_SUCCEEDED);
}

TEST(PreemptedJob, ReleasesItsSlotsThroughACheckpointAndFinishesLater) {
  ClusterBed bed({.workers = 1});
  const TinyJob spec = {.name = "low", .steps = 900, .every = 100'000};
  const std::string low = bed.Submit(spec);
  bed.ExpectStep(low, 30);
  v1::JobScheduling urgent;
  urgent.set_priority(5);
  const std::string high = bed.Submit({.name = "high", .steps = 40}, urgent);
  bed.ExpectState(high, v1::JOB_STATE_SUCCEEDED);
  bed.ExpectState(low, v1::JOB_STATE_SUCCEEDED);
  const v1::Job job = bed.Describe(low);
  EXPECT_EQ(job.attempts(), 2) << bed.Story(low);
  ASSERT_EQ(job.recent_attempts_size(), 2) << bed.Story(low);
  EXPECT_EQ(job.recent_attempts(0).outcome(), v1::ATTEMPT_OUTCOME_STOPPED);
  EXPECT_EQ(job.blames_size(), 0);
  // It was stopped while the other job ran, and no step was made twice.
  EXPECT_GE(job.recent_attempts(1).launched_unix_ms(), bed.Describe(high).finished_unix_ms());
  ExpectUndisturbed(bed, low, spec);
}

TEST(ElasticJob, ShrinksForAMoreUrgentJobAndContinues) {
  ClusterBed bed({.workers = 1, .slots = 2});
  v1::JobScheduling elastic;
  elastic.add_allowed_ranks(1);
  elastic.add_allowed_ranks(2);
  const TinyJob spec = {.name = "elastic", .ranks = 2, .steps = 900};
  const std::string job = bed.Submit(spec, elastic);
  bed.ExpectStep(job, 30);
  v1::JobScheduling urgent;
  urgent.set_priority(5);
  const std::string other = bed.Submit({.name = "urgent", .steps = 300}, urgent);
  bed.ExpectState(other, v1::JOB_STATE_SUCCEEDED);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const v1::Job described = bed.Describe(job);
  ASSERT_GE(described.recent_attempts_size(), 2) << bed.Story(job);
  EXPECT_EQ(described.recent_attempts(0).world(), 2);
  EXPECT_EQ(described.recent_attempts(1).world(), 1);
  EXPECT_EQ(described.recent_attempts(0).outcome(), v1::ATTEMPT_OUTCOME_STOPPED);
  // Beside the urgent job, not after it.
  EXPECT_LT(described.recent_attempts(1).launched_unix_ms(),
            bed.Describe(other).finished_unix_ms());
  EXPECT_EQ(EventsOf(bed.EventLog(job), "step").size(), static_cast<size_t>(spec.steps));
}

TEST(ElasticJob, GrowsThroughACheckpointOnceSlotsAreFree) {
  ClusterBed bed({.workers = 1, .slots = 2, .coordinator_flags = {"--grow-interval-ms", "200"}});
  const std::string first = bed.Submit({.name = "first", .steps = 300});
  bed.ExpectStep(first, 5);
  v1::JobScheduling elastic;
  elastic.add_allowed_ranks(1);
  elastic.add_allowed_ranks(2);
  const TinyJob spec = {.name = "elastic", .ranks = 2, .steps = 900, .every = 100'000};
  const std::string job = bed.Submit(spec, elastic);
  bed.ExpectState(first, v1::JOB_STATE_SUCCEEDED);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const v1::Job described = bed.Describe(job);
  ASSERT_EQ(described.recent_attempts_size(), 2) << bed.Story(job);
  EXPECT_EQ(described.recent_attempts(0).world(), 1);
  EXPECT_EQ(described.recent_attempts(0).outcome(), v1::ATTEMPT_OUTCOME_STOPPED);
  EXPECT_EQ(described.recent_attempts(1).world(), 2);
  // No step was made twice.
  EXPECT_EQ(EventsOf(bed.EventLog(job), "step").size(), static_cast<size_t>(spec.steps));
}

TEST(DrainedWorker, ItsJobMovesToAnotherThroughACheckpoint) {
  ClusterBed bed({.workers = 2});
  const TinyJob spec = {.steps = 900, .every = 100'000};
  const std::string job = bed.Submit(spec);
  bed.ExpectStep(job, 30);
  const std::string from = bed.LiveRanks().at(0).worker;
  bed.Drain(from);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const v1::Job described = bed.Describe(job);
  ASSERT_EQ(described.recent_attempts_size(), 2) << bed.Story(job);
  EXPECT_EQ(described.recent_attempts(0).outcome(), v1::ATTEMPT_OUTCOME_STOPPED);
  EXPECT_NE(described.recent_attempts(1).placements(0).worker(), from);
  ExpectUndisturbed(bed, job, spec);
}

}  // namespace
}  // namespace nibble
