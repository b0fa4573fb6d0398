// Requests are carried out once, whole or not at all; submissions are checked whole.
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "server/state/limits.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

using Code = absl::StatusCode;

v1::SubmitJobRequest Submission(const std::string& id) {
  v1::SubmitJobRequest request;
  request.set_request_id(id);
  request.set_spec_yaml(TestCluster::Spec("train", 4));
  return request;
}

TEST(Request, ARepeatedRequestGetsTheFirstAnswerAndIsCarriedOutOnce) {
  TestCluster cluster;
  const auto first = cluster.Do<v1::SubmitJobResponse>(Submission("abcdefgh"));
  ASSERT_EQ(first.status(), absl::OkStatus());
  cluster.Submit();
  const int64_t before = cluster.state().sequence();
  cluster.now_ms += 1000;
  const auto again = cluster.Do<v1::SubmitJobResponse>(Submission("abcdefgh"));
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_EQ(again->SerializeAsString(), first->SerializeAsString());
  EXPECT_EQ(cluster.state().sequence(), before);
  EXPECT_EQ(cluster.state().tables().jobs.size(), 2u);
}

TEST(Request, AnIdUsedForAnotherRequestIsRefused) {
  TestCluster cluster;
  ASSERT_EQ(cluster.Do<v1::SubmitJobResponse>(Submission("abcdefgh")).status(), absl::OkStatus());
  v1::SubmitJobRequest other = Submission("abcdefgh");
  other.mutable_scheduling()->set_priority(3);
  EXPECT_EQ(cluster.Do<v1::SubmitJobResponse>(other).status().code(), Code::kAlreadyExists);
  v1::KillJobRequest kill;
  kill.set_request_id("abcdefgh");
  kill.set_job("train-1");
  EXPECT_EQ(cluster.Do<v1::KillJobResponse>(kill).status().code(), Code::kAlreadyExists);
}

TEST(Request, IdsOfDifferentCallersAreDifferent) {
  TestCluster cluster;
  ASSERT_EQ(cluster.Do<v1::SubmitJobResponse>(Submission("abcdefgh")).status(), absl::OkStatus());
  cluster.author = "bob";
  const auto other = cluster.Do<v1::SubmitJobResponse>(Submission("abcdefgh"));
  ASSERT_EQ(other.status(), absl::OkStatus());
  EXPECT_EQ(other->job().id(), "train-2");
  EXPECT_EQ(cluster.Job("train-2").owner(), "bob");
}

TEST(Request, ARefusedRequestIsNotRemembered) {
  TestCluster cluster;
  v1::SubmitJobRequest request = Submission("abcdefgh");
  request.mutable_scheduling()->set_queue("research");
  EXPECT_EQ(cluster.Do<v1::SubmitJobResponse>(request).status().code(), Code::kNotFound);
  v1::SetQueueRequest queue;
  queue.set_request_id(cluster.Id());
  queue.mutable_queue()->set_name("research");
  ASSERT_EQ(cluster.Do<v1::SetQueueResponse>(queue).status(), absl::OkStatus());
  EXPECT_EQ(cluster.Do<v1::SubmitJobResponse>(request).status(), absl::OkStatus());
}

TEST(Request, AnAnswerIsRememberedWhateverTheWallClockSays) {
  TestCluster cluster;
  constexpr int64_t kMonthMs = int64_t{30} * 24 * 3600 * 1000;
  const auto first = cluster.Do<v1::SubmitJobResponse>(Submission("abcdefgh"));
  ASSERT_EQ(first.status(), absl::OkStatus());
  for (const int64_t jump_ms : {kMonthMs, -2 * kMonthMs}) {
    cluster.now_ms = std::max<int64_t>(0, cluster.now_ms + jump_ms);
    cluster.Submit();
    const auto again = cluster.Do<v1::SubmitJobResponse>(Submission("abcdefgh"));
    ASSERT_EQ(again.status(), absl::OkStatus());
    EXPECT_EQ(again->job().id(), first->job().id());
  }
}

TEST(Request, AnIdMustBeOne) {
  TestCluster cluster;
  for (const char* id : {"", "short", "has blank", "has/slash", "ümlauted"}) {
    EXPECT_EQ(cluster.Do<v1::SubmitJobResponse>(Submission(id)).status().code(),
              Code::kInvalidArgument)
        << id;
  }
}

TEST(Request, AnUpdateOnAStateThatHasMovedOnIsRefused) {
  TestCluster cluster;
  const auto decision = Decide(cluster.state(), Submission("abcdefgh"), cluster.caller());
  ASSERT_EQ(decision.status(), absl::OkStatus());
  cluster.Submit();
  const int64_t before = cluster.state().sequence();
  EXPECT_EQ(cluster.Apply(*decision->update).code(), Code::kInternal);
  EXPECT_EQ(cluster.state().sequence(), before);
}

TEST(Request, AnUpdateHoldsWholeOrNotAtAll) {
  TestCluster cluster;
  const auto decision = Decide(cluster.state(), Submission("abcdefgh"), cluster.caller());
  ASSERT_EQ(decision.status(), absl::OkStatus());
  v1::Update update = *decision->update;
  update.add_facts()->mutable_job_priority_set()->set_job("train-99");
  EXPECT_EQ(cluster.Apply(update).code(), Code::kNotFound);
  EXPECT_EQ(cluster.state().FindJob("train-1"), nullptr);
  EXPECT_EQ(cluster.state().sequence(), 1);
}

TEST(Request, ABadSpecIsRefusedNamingTheField) {
  TestCluster cluster;
  v1::SubmitJobRequest request = Submission("abcdefgh");
  request.set_spec_yaml(TestCluster::Spec("train", 4) + "optimiser: {lr: 1}\n");
  const absl::Status status = cluster.Do<v1::SubmitJobResponse>(request).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "optimiser")) << status;
  EXPECT_TRUE(cluster.state().tables().jobs.empty());
}

TEST(Request, ASpecOfTooManyBytesIsRefusedBeforeItIsRead) {
  TestCluster cluster;
  v1::SubmitJobRequest request = Submission("abcdefgh");
  request.set_spec_yaml(std::string(kMaxSpecBytes + 1, '#'));
  const absl::Status status = cluster.Do<v1::SubmitJobResponse>(request).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "1048577 bytes; at most 1048576")) << status;
}

TEST(Request, ADryRunOfASubmissionStoresNothing) {
  TestCluster cluster;
  v1::SubmitJobRequest request = Submission("");
  request.set_dry_run(true);
  const auto response = cluster.Do<v1::SubmitJobResponse>(request);
  ASSERT_EQ(response.status(), absl::OkStatus());
  EXPECT_EQ(response->job().id(), "train-1");
  EXPECT_EQ(response->job().shape().steps(), 1000);
  EXPECT_TRUE(cluster.state().tables().jobs.empty());
}

TEST(Request, WorldSizesMustShareTheBatchEvenly) {
  TestCluster cluster;
  v1::SubmitJobRequest request = Submission("abcdefgh");
  request.mutable_scheduling()->add_allowed_ranks(2);
  request.mutable_scheduling()->add_allowed_ranks(3);
  EXPECT_EQ(cluster.Do<v1::SubmitJobResponse>(request).status().code(), Code::kInvalidArgument);
  request.mutable_scheduling()->set_allowed_ranks(1, 8);
  EXPECT_EQ(cluster.Do<v1::SubmitJobResponse>(request).status(), absl::OkStatus());
}

TEST(Request, ASpecSaysWhereAndWhenItsJobRuns) {
  TestCluster cluster;
  v1::SubmitJobRequest request = Submission("abcdefgh");
  *request.mutable_spec_yaml() +=
      "  min_ranks: 2\n"
      "scheduling: {priority: 7, require: {rack: a}, prefer: {zone: b}, prefer_fp4: true}\n"
      "restarts: {max_without_progress: 1, backoff: 0.5, max_backoff: 20}\n";
  const std::string inside = "resources: {ranks: 4}\n";
  request.mutable_spec_yaml()->replace(request.spec_yaml().find(inside), inside.size(),
                                       "resources:\n  ranks: 4\n");
  const auto response = cluster.Do<v1::SubmitJobResponse>(request);
  ASSERT_EQ(response.status(), absl::OkStatus());
  const v1::JobScheduling& scheduling = response->job().scheduling();
  EXPECT_EQ(scheduling.queue(), "default");
  EXPECT_EQ(scheduling.priority(), 7);
  ASSERT_EQ(scheduling.allowed_ranks_size(), 2);
  EXPECT_EQ(scheduling.allowed_ranks(0), 2);
  EXPECT_EQ(scheduling.allowed_ranks(1), 4);
  EXPECT_EQ(scheduling.required_labels(0).key(), "rack");
  EXPECT_EQ(scheduling.preferred_labels(0).value(), "b");
  EXPECT_TRUE(scheduling.wants_fp4_tensor_cores());
  const v1::RestartPolicy& policy = response->job().restart_policy();
  EXPECT_EQ(policy.max_without_progress(), 1);
  EXPECT_EQ(policy.initial_backoff_ms(), 500);
  EXPECT_EQ(policy.max_backoff_ms(), 20'000);
}

TEST(Request, WhatARequestSetsGoesOverTheSpec) {
  TestCluster cluster;
  v1::SubmitJobRequest request = Submission("abcdefgh");
  *request.mutable_spec_yaml() +=
      "scheduling: {queue: nowhere, priority: 7}\nrestarts: {max_without_progress: 1}\n";
  EXPECT_EQ(cluster.Do<v1::SubmitJobResponse>(request).status().code(), Code::kNotFound);
  request.mutable_scheduling()->set_queue("default");
  request.mutable_scheduling()->set_priority(-2);
  request.mutable_scheduling()->add_allowed_ranks(8);
  request.mutable_restart_policy()->set_max_without_progress(5);
  request.mutable_restart_policy()->set_max_backoff_ms(10);
  const auto response = cluster.Do<v1::SubmitJobResponse>(request);
  ASSERT_EQ(response.status(), absl::OkStatus());
  EXPECT_EQ(response->job().scheduling().queue(), "default");
  EXPECT_EQ(response->job().scheduling().priority(), -2);
  ASSERT_EQ(response->job().scheduling().allowed_ranks_size(), 1);
  EXPECT_EQ(response->job().scheduling().allowed_ranks(0), 8);
  EXPECT_EQ(response->job().restart_policy().max_without_progress(), 5);
}

TEST(Request, AWallClockThatIsSetBackStopsNothingAndIsStoredAsItIs) {
  TestCluster cluster;
  cluster.Submit();
  cluster.now_ms -= 500'000;
  const std::string job = cluster.Submit();
  EXPECT_EQ(cluster.Job(job).submitted_unix_ms(), cluster.now_ms);
  EXPECT_EQ(cluster.state().time_unix_ms(), cluster.now_ms);
}

TEST(Request, JobsAreForgottenInTheOrderInWhichTheyFinishedWhateverTheWallClockSays) {
  TestCluster cluster;
  const auto finish = [&cluster] {
    const std::string job = cluster.Submit();
    v1::KillJobRequest kill;
    kill.set_request_id(cluster.Id());
    kill.set_job(job);
    EXPECT_EQ(cluster.Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
    return job;
  };
  const std::string first = finish();
  cluster.now_ms = 0;
  const std::string second = finish();
  EXPECT_EQ(cluster.state().index().finished().begin()->second, first);
  EXPECT_EQ(cluster.state().index().finished().Last()->second, second);
}

}  // namespace
}  // namespace nibble
