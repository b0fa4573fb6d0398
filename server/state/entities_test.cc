#include "server/state/entities.h"

#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state/decide.h"
#include "server/state/limits.h"
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
    "..S.P...FX",  // QUEUED
    ".Q.R.C..FX",  // STARTING
    "....PCE+FX",  // RUNNING
    ".Q.R.....X",  // PAUSED
    "...RP...FX",  // RECOVERING
    ".Q.....+FX",  // PREEMPTED
    "..........",  // SUCCEEDED
    "..........",  // FAILED
    "..........",  // CANCELLED
};

TEST(JobMachine, HasExactlyTheTransitionsOfTheTable) {
  for (size_t from = 0; from < std::size(kStates); ++from) {
    for (size_t to = 0; to < std::size(kStates); ++to) {
      EXPECT_EQ(MayMove(kStates[from], kStates[to]), kMayMove[from][to] != '.')
          << StateName(kStates[from]) << " → " << StateName(kStates[to]);
    }
  }
  EXPECT_EQ(static_cast<int>(std::size(kStates)), v1::JobState_ARRAYSIZE);
}

TEST(JobMachine, NoTransitionLeavesAFinishedState) {
  for (const v1::JobState from : kStates) {
    if (!IsFinished(from)) continue;
    for (const v1::JobState to : kStates) EXPECT_FALSE(MayMove(from, to));
  }
}

TEST(JobMachine, RanksThatHaveEndedNeverChangeTheirPhase) {
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

// Brings a job to a state by requests and reports, and returns its id.
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

TEST(JobMachine, TheStateRefusesEveryTransitionThatIsNotInTheTable) {
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
          // The transition is legal, but alone it may leave an attempt in a state that must have
          // none.
          EXPECT_TRUE(status.ok() || absl::StrContains(status.message(), "attempt")) << status;
        }
      }
    }
  }
}

TEST(JobMachine, EveryTransitionRecordsAReasonATimeAndAnAuthor) {
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

using ::testing::HasSubstr;

class NotifyStateTest : public testing::Test {
 protected:
  NotifyStateTest() { cluster_.AddWorkers(2, 2); }

  absl::StatusOr<v1::JobSubmitted> Decided(const std::string& notify, bool dry_run = false) {
    v1::SubmitJobRequest request;
    request.set_request_id(cluster_.Id());
    request.set_spec_yaml(absl::StrCat(TestCluster::Spec("train", 2), notify));
    request.set_dry_run(dry_run);
    Caller caller = cluster_.caller();
    caller.may_post = &may_post_;
    const auto decision = Decide(cluster_.state(), request, caller);
    if (!decision.ok()) return decision.status();
    if (!decision->update) return v1::JobSubmitted();
    EXPECT_EQ(cluster_.Apply(*decision->update), absl::OkStatus());
    return decision->update->facts(0).job_submitted();
  }
  std::string Submit(const std::string& notify) {
    const auto submitted = Decided(notify);
    EXPECT_EQ(submitted.status(), absl::OkStatus());
    return submitted.ok() ? submitted->job() : "";
  }
  absl::Status Settle(const std::string& job, int64_t through, const std::string& problem = "") {
    v1::PostsSettled settled;
    settled.set_job(job);
    settled.set_through_event(through);
    settled.set_delivered(problem.empty() ? 1 : 0);
    settled.set_given_up(problem.empty() ? 0 : 1);
    settled.set_problem(problem);
    return cluster_.Run(DecideSettled(cluster_.state(), {settled}, cluster_.caller()));
  }
  const v1::NotifyTarget& Target(const std::string& job) { return cluster_.Job(job).notify(0); }

  std::function<absl::Status(const std::string&)> may_post_ = [](const std::string& url) {
    return url == "http://a.org" ? absl::OkStatus() : absl::FailedPreconditionError("not there");
  };
  TestCluster cluster_;
};

TEST_F(NotifyStateTest, AUrlThatMayNotBePostedToIsRefusedEvenInADryRun) {
  for (const bool dry_run : {false, true}) {
    const auto refused = Decided("notify: [http://a.org, http://b.org]\n", dry_run);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
    EXPECT_EQ(refused.status().message(), "notify[1].url: not there");
  }
  v1::SubmitJobRequest request;
  request.set_request_id(cluster_.Id());
  request.set_spec_yaml(absl::StrCat(TestCluster::Spec("train", 2), "notify: [http://a.org]\n"));
  EXPECT_TRUE(absl::IsFailedPrecondition(cluster_.Do<v1::SubmitJobResponse>(request).status()));
}

TEST_F(NotifyStateTest, AJobRemembersWhichEventsAreStillToBePosted) {
  const std::string job = Submit("notify: [{url: \"http://a.org\", on: [started, cancelled]}]\n");
  EXPECT_EQ(Target(job).wanted_event(), 0);
  EXPECT_TRUE(cluster_.state().index().unsettled().empty());
  ASSERT_EQ(cluster_.Start(job), absl::OkStatus());
  const int64_t started = Target(job).wanted_event();
  EXPECT_GT(started, 1);
  EXPECT_TRUE(cluster_.state().index().unsettled().contains(job));
  ASSERT_EQ(Settle(job, started), absl::OkStatus());
  EXPECT_TRUE(cluster_.state().index().unsettled().empty());
  EXPECT_EQ(Target(job).delivered(), 1);
  EXPECT_EQ(Target(job).settled_unix_ms(), cluster_.now_ms);
}

TEST_F(NotifyStateTest, SettledEventsStaySettledAfterAReplay) {
  const std::string job = Submit("notify: [{url: \"http://a.org\", on: [submitted, started]}]\n");
  ASSERT_EQ(Settle(job, 1, "it answered 500"), absl::OkStatus());
  ASSERT_EQ(cluster_.Start(job), absl::OkStatus());
  const auto replayed = Replay(cluster_.journal(), cluster_.journal().size());
  const auto loaded = Load(cluster_.store());
  ASSERT_EQ(replayed.status(), absl::OkStatus());
  ASSERT_EQ(loaded.status(), absl::OkStatus());
  for (const State* state : {&*replayed, &*loaded}) {
    const v1::NotifyTarget& target = state->FindJob(job)->notify(0);
    EXPECT_EQ(target.settled_event(), 1);
    EXPECT_GT(target.wanted_event(), 1);
    EXPECT_EQ(target.given_up(), 1);
    EXPECT_EQ(target.problem(), "it answered 500");
    EXPECT_TRUE(state->index().unsettled().contains(job));
  }
}

TEST_F(NotifyStateTest, SettlingAgainOrForAForgottenJobChangesNothing) {
  const std::string job = Submit("notify: [{url: \"http://a.org\", on: [submitted]}]\n");
  ASSERT_EQ(Settle(job, 1), absl::OkStatus());
  const int64_t sequence = cluster_.state().sequence();
  EXPECT_EQ(Settle(job, 1), absl::OkStatus());
  EXPECT_EQ(Settle("gone-9", 1), absl::OkStatus());
  EXPECT_EQ(cluster_.state().sequence(), sequence);
  const v1::Update beyond = cluster_.Facts([&](v1::Fact& fact) {
    fact.mutable_posts_settled()->set_job(job);
    fact.mutable_posts_settled()->set_through_event(7);
  });
  EXPECT_TRUE(absl::IsInvalidArgument(cluster_.state().Validate(beyond)));
}

v1::AlertChanged AlertOf(const std::string& job, const std::string& name, bool fires) {
  v1::AlertChanged change;
  change.set_job(job);
  change.mutable_alert()->set_name(name);
  change.mutable_alert()->set_severity("page");
  change.mutable_alert()->set_summary("Loss is 90");
  change.mutable_alert()->set_starts_unix_ms(500);
  if (!fires) change.mutable_alert()->set_ends_unix_ms(900);
  return change;
}

TEST_F(NotifyStateTest, AnAlertIsOneEventWhenItFiresAndOneWhenItIsResolved) {
  const std::string job = Submit("notify: [{url: \"http://a.org\", on: [alert]}]\n");
  const auto decided = [&](bool fires) {
    return cluster_.Run(DecideAlerts(cluster_.state(), {AlertOf(job, "NibbleLossSpike", fires)},
                                     cluster_.caller()));
  };
  for (int times = 0; times < 3; ++times) ASSERT_EQ(decided(true), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(job).alerts_size(), 1);
  EXPECT_EQ(Target(job).wanted_event(), 2);
  for (int times = 0; times < 3; ++times) ASSERT_EQ(decided(false), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(job).alerts_size(), 0);
  std::vector<std::string> texts;
  for (const v1::JobEvent* event : cluster_.state().EventsOf(job)) texts.push_back(event->text());
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[1], "NibbleLossSpike fires (page): Loss is 90");
  EXPECT_EQ(texts[2], "NibbleLossSpike is resolved: Loss is 90");
  EXPECT_EQ(cluster_.state().EventsOf(job)[2]->alert().ends_unix_ms(), 900);
}

TEST_F(NotifyStateTest, AJobHasABoundedNumberOfAlertsAndUnknownJobsHaveNone) {
  const std::string job = Submit("");
  std::vector<v1::AlertChanged> changes = {AlertOf("nibble", "NibbleWorkerLost", true)};
  for (int64_t i = 0; i < kMaxAlerts + 3; ++i) {
    changes.push_back(AlertOf(job, absl::StrCat("Rule", i), true));
  }
  ASSERT_EQ(cluster_.Run(DecideAlerts(cluster_.state(), changes, cluster_.caller())),
            absl::OkStatus());
  EXPECT_EQ(cluster_.Job(job).alerts_size(), kMaxAlerts);
  EXPECT_EQ(FindAlert(cluster_.Job(job), absl::StrCat("Rule", kMaxAlerts)), nullptr);
  const v1::Update resolved_twice = cluster_.Facts(
      [&](v1::Fact& fact) { *fact.mutable_alert_changed() = AlertOf(job, "Rule99", false); });
  EXPECT_TRUE(absl::IsFailedPrecondition(cluster_.state().Validate(resolved_twice)));
}

TEST_F(NotifyStateTest, EventsHaveTheNamesThatSpecsUse) {
  v1::JobEvent event;
  event.set_kind(v1::JOB_EVENT_KIND_MOVED);
  event.set_to(v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(PostedAs(event), NotifyEvent::kCompleted);
  event.set_to(v1::JOB_STATE_QUEUED);
  EXPECT_EQ(PostedAs(event), std::nullopt);
  event.set_kind(v1::JOB_EVENT_KIND_RECIPE);
  EXPECT_EQ(PostedAs(event), NotifyEvent::kRecipeChanged);
  v1::NotifyTarget target;
  target.add_on("completed");
  EXPECT_FALSE(Wants(target, event));
  target.add_on("recipe_changed");
  EXPECT_TRUE(Wants(target, event));
}

}  // namespace
}  // namespace nibble
