#include "server/state/job_machine.h"

#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

constexpr v1::JobState kStates[] = {v1::JOB_STATE_UNSPECIFIED, v1::JOB_STATE_QUEUED,
                                    v1::JOB_STATE_STARTING,    v1::JOB_STATE_RUNNING,
                                    v1::JOB_STATE_PAUSED,      v1::JOB_STATE_RECOVERING,
                                    v1::JOB_STATE_PREEMPTED,   v1::JOB_STATE_SUCCEEDED,
                                    v1::JOB_STATE_FAILED,      v1::JOB_STATE_CANCELLED};

// Rows from, columns to, in the order of kStates.
constexpr const char* kMayMove[] = {
    // U Q S R P C E ✓ F X
    "..........",  // UNSPECIFIED
    "..S.P....X",  // QUEUED
    ".Q.R.C..FX",  // STARTING
    "....PCE+FX",  // RUNNING
    ".Q.R.....X",  // PAUSED
    "...RP...FX",  // RECOVERING
    ".Q.....+FX",  // PREEMPTED
    "..........",  // SUCCEEDED
    "..........",  // FAILED
    "..........",  // CANCELLED
};

TEST(JobMachine, HasExactlyTheWaysOfTheTable) {
  for (size_t from = 0; from < std::size(kStates); ++from) {
    for (size_t to = 0; to < std::size(kStates); ++to) {
      EXPECT_EQ(MayMove(kStates[from], kStates[to]), kMayMove[from][to] != '.')
          << StateName(kStates[from]) << " → " << StateName(kStates[to]);
    }
  }
  EXPECT_EQ(static_cast<int>(std::size(kStates)), v1::JobState_ARRAYSIZE);
}

TEST(JobMachine, NoWayLeadsOutOfAFinishedState) {
  for (const v1::JobState from : kStates) {
    if (!IsFinished(from)) continue;
    for (const v1::JobState to : kStates) EXPECT_FALSE(MayMove(from, to));
  }
}

TEST(JobMachine, RanksThatHaveEndedStayAsTheyEnded) {
  for (const v1::RankPhase from :
       {v1::RANK_PHASE_STOPPED, v1::RANK_PHASE_SUCCEEDED, v1::RANK_PHASE_FAILED}) {
    for (int to = 0; to < v1::RankPhase_ARRAYSIZE; ++to) {
      EXPECT_FALSE(MayMove(from, static_cast<v1::RankPhase>(to)));
    }
  }
  EXPECT_TRUE(MayMove(v1::RANK_PHASE_RUNNING, v1::RANK_PHASE_PAUSED));
  EXPECT_TRUE(MayMove(v1::RANK_PHASE_PAUSED, v1::RANK_PHASE_RUNNING));
  EXPECT_FALSE(MayMove(v1::RANK_PHASE_RUNNING, v1::RANK_PHASE_ASSIGNED));
}

// A job that was brought to a state by what leads there in life.
std::string BringTo(v1::JobState state, TestCluster& cluster) {
  cluster.AddWorkers(2, 4);
  const std::string job = cluster.Submit();
  v1::PauseJobRequest pause;
  pause.set_request_id(cluster.Id());
  pause.set_job(job);
  v1::KillJobRequest kill;
  kill.set_request_id(cluster.Id());
  kill.set_job(job);
  v1::SetJobRestartPolicyRequest limits;
  const auto ok = [](const absl::Status& status) { EXPECT_EQ(status, absl::OkStatus()); };
  switch (state) {
    case v1::JOB_STATE_STARTING:
      ok(cluster.Launch(job));
      break;
    case v1::JOB_STATE_RUNNING:
      ok(cluster.Start(job));
      break;
    case v1::JOB_STATE_PAUSED:
      ok(cluster.Do<v1::PauseJobResponse>(pause).status());
      break;
    case v1::JOB_STATE_RECOVERING:
      ok(cluster.Start(job));
      ok(cluster.Report(job, "w1", v1::RANK_PHASE_FAILED));
      break;
    case v1::JOB_STATE_PREEMPTED:
      ok(cluster.Start(job));
      ok(cluster.Run(DecidePreempt(cluster.state(), job, "room", 1000, cluster.caller())));
      break;
    case v1::JOB_STATE_SUCCEEDED:
      ok(cluster.Start(job));
      ok(cluster.ReportAll(job, v1::RANK_PHASE_SUCCEEDED, 1000));
      break;
    case v1::JOB_STATE_FAILED:
      limits.set_request_id(cluster.Id());
      limits.set_job(job);
      limits.mutable_restart_policy()->set_max_without_progress(0);
      ok(cluster.Do<v1::SetJobRestartPolicyResponse>(limits).status());
      ok(cluster.Start(job));
      ok(cluster.Report(job, "w1", v1::RANK_PHASE_FAILED));
      break;
    case v1::JOB_STATE_CANCELLED:
      ok(cluster.Do<v1::KillJobResponse>(kill).status());
      break;
    default:
      break;
  }
  EXPECT_EQ(cluster.StateOf(job), state) << StateName(state);
  return job;
}

TEST(JobMachine, TheStateRefusesEveryMoveThatIsNotInTheTable) {
  for (size_t from = 1; from < std::size(kStates); ++from) {
    TestCluster cluster;
    const std::string job = BringTo(kStates[from], cluster);
    for (size_t claimed = 0; claimed < std::size(kStates); ++claimed) {
      for (size_t to = 0; to < std::size(kStates); ++to) {
        const v1::Update update = cluster.Facts([&](v1::Fact& fact) {
          fact.mutable_job_moved()->set_job(job);
          fact.mutable_job_moved()->set_from(kStates[claimed]);
          fact.mutable_job_moved()->set_to(kStates[to]);
          fact.mutable_job_moved()->set_reason("test");
        });
        const absl::Status status = cluster.state().Validate(update);
        if (claimed != from || kMayMove[from][to] == '.') {
          EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition)
              << StateName(kStates[from]) << " → " << StateName(kStates[to]);
        } else {
          // The move is legal; alone it may still leave an attempt where none belongs.
          EXPECT_TRUE(status.ok() || absl::StrContains(status.message(), "attempt")) << status;
        }
      }
    }
  }
}

TEST(JobMachine, EveryMoveLeavesAReasonATimeAndAnAuthor) {
  TestCluster cluster;
  const std::string job = BringTo(v1::JOB_STATE_SUCCEEDED, cluster);
  std::vector<std::string> moves;
  for (const v1::JobEvent* event : cluster.state().EventsOf(job)) {
    if (event->kind() != v1::JOB_EVENT_KIND_MOVED) continue;
    EXPECT_FALSE(event->text().empty());
    EXPECT_EQ(event->time_unix_ms(), cluster.now_ms);
    EXPECT_EQ(event->author(), "ann");
    moves.push_back(std::string(StateName(event->to())));
  }
  EXPECT_EQ(moves, (std::vector<std::string>{"STARTING", "RUNNING", "SUCCEEDED"}));
}

}  // namespace
}  // namespace nibble
