#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state/decide_gang.h"
#include "server/state/notify_events.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

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

TEST_F(NotifyStateTest, AUrlThatMayNotBePostedToIsRefusedAlsoInADryRun) {
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

TEST_F(NotifyStateTest, WhatIsSettledStaysSoAfterAReplay) {
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

TEST_F(NotifyStateTest, WhatIsSettledTwiceOrOfAJobThatIsGoneChangesNothing) {
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

TEST_F(NotifyStateTest, EventsHaveTheNamesOfSpecs) {
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
