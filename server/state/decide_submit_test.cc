// Requests are carried out once and atomically; submissions are checked completely.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "job/job_spec.h"
#include "server/state/limits.h"
#include "server/state/testing.h"
#include "server/state/workers.h"

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

TEST(Request, AnInvalidRequestIdIsRefused) {
  TestCluster cluster;
  for (const char* id : {"", "short", "has blank", "has/slash", "ümlauted"}) {
    EXPECT_EQ(cluster.Do<v1::SubmitJobResponse>(Submission(id)).status().code(),
              Code::kInvalidArgument)
        << id;
  }
}

TEST(Request, AnUpdateForAnEarlierStateIsRefused) {
  TestCluster cluster;
  const auto decision = Decide(cluster.state(), Submission("abcdefgh"), cluster.caller());
  ASSERT_EQ(decision.status(), absl::OkStatus());
  cluster.Submit();
  const int64_t before = cluster.state().sequence();
  EXPECT_EQ(cluster.Apply(*decision->update).code(), Code::kInternal);
  EXPECT_EQ(cluster.state().sequence(), before);
}

TEST(Request, AnUpdateIsAtomic) {
  TestCluster cluster;
  const auto decision = Decide(cluster.state(), Submission("abcdefgh"), cluster.caller());
  ASSERT_EQ(decision.status(), absl::OkStatus());
  v1::Update update = *decision->update;
  update.add_facts()->mutable_job_priority_set()->set_job("train-99");
  EXPECT_EQ(cluster.Apply(update).code(), Code::kNotFound);
  EXPECT_EQ(cluster.state().FindJob("train-1"), nullptr);
  EXPECT_EQ(cluster.state().sequence(), 1);
}

TEST(Request, AnInvalidSpecIsRefusedNamingTheField) {
  TestCluster cluster;
  v1::SubmitJobRequest request = Submission("abcdefgh");
  request.set_spec_yaml(TestCluster::Spec("train", 4) + "optimiser: {lr: 1}\n");
  const absl::Status status = cluster.Do<v1::SubmitJobResponse>(request).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "optimiser")) << status;
  EXPECT_TRUE(cluster.state().tables().jobs.empty());
}

TEST(Request, ASpecOfTooManyBytesIsRefusedBeforeItIsParsed) {
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

TEST(Request, WorldSizesMustDivideTheBatch) {
  TestCluster cluster;
  v1::SubmitJobRequest request = Submission("abcdefgh");
  request.mutable_scheduling()->add_allowed_ranks(2);
  request.mutable_scheduling()->add_allowed_ranks(3);
  EXPECT_EQ(cluster.Do<v1::SubmitJobResponse>(request).status().code(), Code::kInvalidArgument);
  request.mutable_scheduling()->set_allowed_ranks(1, 8);
  EXPECT_EQ(cluster.Do<v1::SubmitJobResponse>(request).status(), absl::OkStatus());
}

TEST(Request, ASpecSetsTheSchedulingOfItsJob) {
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

TEST(Request, AJobHasTheProjectOfItsRequestWithinThoseOfItsCaller) {
  TestCluster cluster;
  const auto submit = [&](const std::string& id, const std::string& project,
                          const std::vector<std::string>& projects) {
    v1::SubmitJobRequest request = Submission(id);
    request.mutable_scheduling()->set_project(project);
    Caller caller = cluster.caller();
    caller.projects = projects;
    const auto decided = Decide(cluster.state(), request, caller);
    return decided.ok()
               ? absl::StatusOr<std::string>(decided->response.job().scheduling().project())
               : absl::StatusOr<std::string>(decided.status());
  };
  EXPECT_EQ(*submit("request-1", "", {}), "");
  EXPECT_EQ(*submit("request-2", "speech", {}), "speech");
  EXPECT_EQ(*submit("request-3", "", {"nlp"}), "nlp");
  EXPECT_EQ(*submit("request-4", "nlp", {"speech", "nlp"}), "nlp");
  EXPECT_EQ(submit("request-5", "nlp", {"speech"}).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(submit("request-6", "", {"speech", "nlp"}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(submit("request-7", "../etc", {}).status().code(), Code::kInvalidArgument);
}

TEST(Request, FieldsOfARequestOverrideTheSpec) {
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

TEST(Request, AWallClockThatIsSetBackDoesNoHarmAndIsStoredAsItIs) {
  TestCluster cluster;
  cluster.Submit();
  cluster.now_ms -= 500'000;
  const std::string job = cluster.Submit();
  EXPECT_EQ(cluster.Job(job).submitted_unix_ms(), cluster.now_ms);
  EXPECT_EQ(cluster.state().time_unix_ms(), cluster.now_ms);
}

TEST(Request, JobsAreForgottenInTheOrderInWhichTheyFinishedWhateverTheWallClock) {
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

// Jobs with init_from: they start with the weights of another job's checkpoint.

class InitFromTest : public testing::Test {
 protected:
  InitFromTest() {
    cluster_.AddWorkers(3, 2);
    base_ = cluster_.Submit(2, "base");
    EXPECT_EQ(cluster_.Start(base_), absl::OkStatus());
    EXPECT_EQ(cluster_.Checkpoint(base_, 40), absl::OkStatus());
    EXPECT_EQ(cluster_.Checkpoint(base_, 100), absl::OkStatus());
  }
  absl::StatusOr<v1::Job> SubmitSpec(const std::string& yaml, bool dry_run = false) {
    v1::SubmitJobRequest request;
    request.set_request_id(cluster_.Id());
    request.set_spec_yaml(yaml);
    request.set_dry_run(dry_run);
    const auto response = cluster_.Do<v1::SubmitJobResponse>(request);
    if (!response.ok()) return response.status();
    return response->job();
  }
  absl::StatusOr<v1::Job> Submit(const std::string& init, bool dry_run = false) {
    return SubmitSpec(absl::StrCat(TestCluster::Spec("tuned", 1), "init_from: {", init, "}\n"),
                      dry_run);
  }
  absl::Status Delete(int64_t step) {
    v1::DeleteCheckpointRequest request;
    request.set_request_id(cluster_.Id());
    request.mutable_ref()->set_job(base_);
    request.mutable_ref()->set_step(step);
    return cluster_.Do<v1::DeleteCheckpointResponse>(request).status();
  }

  TestCluster cluster_;
  std::string base_;
};

TEST_F(InitFromTest, AJobStartsAtStepZeroWithTheWeightsOfTheNewestGoodCheckpoint) {
  const auto dry = Submit("job: base", true);
  ASSERT_EQ(dry.status(), absl::OkStatus());
  EXPECT_EQ(dry->origin().checkpoint().job(), base_);
  const auto job = Submit("job: base");
  ASSERT_EQ(job.status(), absl::OkStatus());
  EXPECT_TRUE(job->origin().weights_only());
  EXPECT_EQ(job->origin().checkpoint().step(), 100);
  EXPECT_EQ(job->origin().checkpoint().attempt(), 1);
  EXPECT_EQ(job->next_step(), 0);
  ASSERT_EQ(cluster_.Launch(job->id()), absl::OkStatus());
  const v1::Attempt& attempt = cluster_.Job(job->id()).attempt();
  EXPECT_EQ(attempt.resume().job(), base_);
  EXPECT_EQ(attempt.resume().step(), 100);
  EXPECT_EQ(cluster_.state().EarliestStep(cluster_.Job(job->id())), 0);
  const std::string worker = attempt.placements(0).worker();
  bool found = false;
  for (const v1::DesiredGang& gang : DesiredGangs(cluster_.state(), worker, 1)) {
    if (gang.job() != job->id()) continue;
    found = true;
    EXPECT_TRUE(gang.weights_only());
    EXPECT_EQ(gang.resume_shards_size(), 2);
  }
  EXPECT_TRUE(found);
  // Its own checkpoints may be at earlier steps than the parent's.
  ASSERT_EQ(cluster_.ReportAll(job->id(), v1::RANK_PHASE_RUNNING), absl::OkStatus());
  EXPECT_EQ(cluster_.Checkpoint(job->id(), 10), absl::OkStatus());
}

TEST_F(InitFromTest, AJobWithACheckpointOfItsOwnResumesFromThat) {
  const auto job = Submit(absl::StrCat("job: ", base_, ", step: 40"));
  ASSERT_EQ(job.status(), absl::OkStatus());
  const std::string& id = job->id();
  ASSERT_EQ(cluster_.Start(id), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(id).attempt().resume().step(), 40);
  const std::string worker = cluster_.Job(id).attempt().placements(0).worker();
  // Without a checkpoint of its own it starts over.
  ASSERT_EQ(cluster_.Report(id, worker, v1::RANK_PHASE_FAILED), absl::OkStatus());
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Start(id), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(id).attempt().resume().job(), base_);
  ASSERT_EQ(cluster_.Checkpoint(id, 10), absl::OkStatus());
  ASSERT_EQ(cluster_.Report(id, worker, v1::RANK_PHASE_FAILED), absl::OkStatus());
  cluster_.now_ms += kMaxBackoffMs;
  const auto loadable = LoadableCheckpoints(cluster_.state(), cluster_.Job(id));
  ASSERT_EQ(loadable.size(), 1u);
  EXPECT_EQ(loadable[0]->ref().job(), id);
  const absl::Status refused =
      cluster_.Run(DecideLaunch(cluster_.state(), id, {{"w3", {0}}},
                                cluster_.Job(id).origin().checkpoint(), "test", cluster_.caller()));
  EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused;
  ASSERT_EQ(cluster_.Launch(id), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(id).attempt().resume().job(), id);
  for (const v1::DesiredGang& gang : DesiredGangs(cluster_.state(), worker, 1)) {
    EXPECT_FALSE(gang.weights_only());
  }
}

TEST_F(InitFromTest, TheOriginCheckpointIsKeptUntilTheJobHasEnded) {
  const auto job = Submit("job: base, step: 40");
  ASSERT_EQ(job.status(), absl::OkStatus());
  EXPECT_EQ(Delete(40).code(), Code::kFailedPrecondition);
  v1::KillJobRequest kill;
  kill.set_request_id(cluster_.Id());
  kill.set_job(job->id());
  ASSERT_EQ(cluster_.Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  EXPECT_EQ(Delete(40), absl::OkStatus());
}

TEST_F(InitFromTest, AnOriginThatCannotBeUsedIsRefusedNamingTheField) {
  const auto refused = [this](const std::string& init, Code code, const std::string& text) {
    const absl::Status status = Submit(init).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
  };
  refused("job: nobody", Code::kNotFound, "init_from.job: 'nobody' is not a job");
  refused("job: base, step: 77", Code::kNotFound,
          "init_from: base-1 has no committed checkpoint at step 77; run 'nibble checkpoint list");
  refused("path: /runs/base", Code::kInvalidArgument,
          "init_from.path: '/runs/base' is only allowed");
  const std::string second = cluster_.Submit(1, "base");
  refused(absl::StrCat("job: ", second), Code::kNotFound, "has no good checkpoint");
  refused("job: base", Code::kInvalidArgument,
          absl::StrCat("init_from.job: 'base' is the name of ", base_, ", ", second,
                       "; use one of these ids"));
  std::string other = TestCluster::Spec("tuned", 1);
  other.replace(other.find("tiny-hybrid"), 11, "{preset: tiny-hybrid, d_ff: 1024}");
  const absl::Status wider =
      SubmitSpec(absl::StrCat(other, "init_from: {job: ", base_, "}\n")).status();
  EXPECT_EQ(wider.code(), Code::kInvalidArgument) << wider;
  EXPECT_TRUE(absl::StartsWith(wider.message(), "model.d_ff: 1024, but ")) << wider;
  EXPECT_TRUE(absl::StrContains(wider.message(), base_)) << wider;
}

TEST_F(InitFromTest, AForkOfAJobWithInitFromStartsFromTheForkedCheckpoint) {
  const auto job = Submit("job: base");
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ(cluster_.Start(job->id()), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job->id(), 10), absl::OkStatus());
  v1::ForkJobRequest request;
  request.set_request_id(cluster_.Id());
  request.mutable_checkpoint()->set_job(job->id());
  request.mutable_checkpoint()->set_step(10);
  request.add_settings("training.repeat=1");
  const auto fork = cluster_.Do<v1::ForkJobResponse>(request);
  ASSERT_EQ(fork.status(), absl::OkStatus());
  EXPECT_FALSE(fork->job().origin().weights_only());
  EXPECT_EQ(fork->job().next_step(), 10);
  const auto spec = ParseJobSpec(cluster_.state().FindSpec(fork->job().id())->spec_yaml());
  ASSERT_EQ(spec.status(), absl::OkStatus());
  EXPECT_FALSE(spec->init_from.any());
}

}  // namespace
}  // namespace nibble
