#include "server/controller/coordinator_metrics.h"

#include <map>
#include <string>

#include "gtest/gtest.h"
#include "server/controller/testing.h"

namespace nibble {
namespace {

int64_t Jobs(const Census::Counts& counts, v1::JobState state) {
  int64_t jobs = 0;
  for (const auto& [queue, states] : counts.jobs) {
    const auto found = states.find(state);
    if (found != states.end()) jobs += found->second;
  }
  return jobs;
}

class CensusTest : public testing::Test {
 protected:
  // Compares the incremental census with one that counts everything now.
  Census::Counts Checked() {
    const Census::Counts now = Followed();
    Census anew;
    coordinator_.controller().Inspect([&](const State& state) { anew.Begin(state, 0); });
    const Census::Counts expected = anew.Now();
    EXPECT_EQ(now.jobs, expected.jobs);
    EXPECT_EQ(now.workers, expected.workers);
    EXPECT_EQ(now.slots, expected.slots);
    EXPECT_EQ(now.slots_used, expected.slots_used);
    EXPECT_EQ(now.unsaved_since_ms, expected.unsaved_since_ms);
    EXPECT_EQ(now.entities.size(), expected.entities.size());
    for (const auto& [kind, entities] : expected.entities) {
      EXPECT_EQ(now.entities.at(kind).count, entities.count) << kind;
      EXPECT_EQ(now.entities.at(kind).mean_bytes > 0, entities.count > 0) << kind;
    }
    return now;
  }

  TestCoordinator coordinator_;

 private:
  Census::Counts Followed() { return coordinator_.controller().metrics().census().Now(); }
};

TEST_F(CensusTest, CountsFollowJobsAndWorkers) {
  TestWorker worker(coordinator_, "w1", 4);
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  const std::string first = coordinator_.Submit(2);
  const std::string second = coordinator_.Submit(4);
  EXPECT_EQ(Jobs(Checked(), v1::JOB_STATE_QUEUED), 2);
  coordinator_.Tick();
  worker.Obey();
  Census::Counts counts = Checked();
  EXPECT_EQ(Jobs(counts, v1::JOB_STATE_RUNNING), 1);
  EXPECT_EQ(counts.slots, 4);
  EXPECT_EQ(counts.slots_used, 2);
  v1::KillJobRequest kill;
  kill.set_job(first);
  ASSERT_EQ(coordinator_.Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  counts = Checked();
  EXPECT_EQ(Jobs(counts, v1::JOB_STATE_CANCELLED), 1);
  EXPECT_EQ(counts.slots_used, 0);
  coordinator_.clock.Advance(60'000);
  coordinator_.Tick();
  counts = Checked();
  EXPECT_EQ(counts.slots, 0);
  EXPECT_EQ(counts.workers.at({false, v1::WORKER_MODE_OPEN}), 1);
}

// A restart would repeat what was trained since the newest checkpoint; before the first,
// everything.
TEST_F(CensusTest, TrainingIsUnsavedSinceTheNewestCheckpointOrTheStartOfTraining) {
  TestWorker worker(coordinator_, "w1", 2);
  const std::string job = worker.RunJob(2, 5);
  const int64_t began_ms = coordinator_.clock.NowUnixMs();
  EXPECT_EQ(Checked().unsaved_since_ms, (std::map<std::string, int64_t>{{job, began_ms}}));
  coordinator_.clock.Advance(4'000);
  worker.Store(10);
  EXPECT_EQ(Checked().unsaved_since_ms, (std::map<std::string, int64_t>{{job, began_ms + 4'000}}));
  // The next attempt resumes from the checkpoint: nothing is unsaved before it runs.
  coordinator_.clock.Advance(5'000);
  worker.report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_FAILED);
  worker.Obey();
  EXPECT_TRUE(Checked().unsaved_since_ms.empty());
  for (int i = 0; i < 20 && Checked().unsaved_since_ms.empty(); ++i) {
    coordinator_.clock.Advance(4'000);
    coordinator_.Tick();
    worker.Obey(10);
  }
  const std::map<std::string, int64_t> again = Checked().unsaved_since_ms;
  EXPECT_EQ(again, (std::map<std::string, int64_t>{{job, coordinator_.clock.NowUnixMs()}}));
}

TEST_F(CensusTest, JobsWithoutCheckpointsWhileTheyTrainHaveNoUnsavedTime) {
  TestWorker worker(coordinator_, "w1", 2);
  worker.Obey();
  coordinator_.Submit(2, "train", "checkpoints: {every: 0}\n");
  coordinator_.Tick();
  worker.Obey(5);
  const Census::Counts counts = Checked();
  EXPECT_EQ(Jobs(counts, v1::JOB_STATE_RUNNING), 1);
  EXPECT_TRUE(counts.unsaved_since_ms.empty());
}

TEST_F(CensusTest, ARestartCountsEverythingAgain) {
  coordinator_.Submit(2);
  coordinator_.Submit(2);
  coordinator_.Restart();
  EXPECT_EQ(Jobs(Checked(), v1::JOB_STATE_QUEUED), 2);
}

TEST_F(CensusTest, AQueueWaitEndsWithTheLaunchAndCountsForItsQueue) {
  Census census;
  coordinator_.Submit(2);
  coordinator_.controller().Inspect([&](const State& state) { census.Begin(state, 1000); });
  TestWorker worker(coordinator_, "w1", 4);
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  coordinator_.Tick();
  const std::vector<Census::Wait> waits =
      coordinator_.controller().Inspect([&](const State& state) {
        return census.Update(state, {{v1::ENTITY_KIND_JOB, state.tables().jobs.begin()->first}},
                             /*now_ms=*/3500);
      });
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].queue, "default");
  EXPECT_EQ(waits[0].seconds, 2.5);
}

}  // namespace
}  // namespace nibble
