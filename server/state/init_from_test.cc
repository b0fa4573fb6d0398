// Jobs that begin with the weights of another job's checkpoint: init_from.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "job/job_spec.h"
#include "server/state/desired.h"
#include "server/state/limits.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

using Code = absl::StatusCode;

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

TEST_F(InitFromTest, AJobBeginsAtStepZeroWithTheWeightsOfTheNewestGoodCheckpoint) {
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
  // Steps before that of the parent's checkpoint are its own.
  ASSERT_EQ(cluster_.ReportAll(job->id(), v1::RANK_PHASE_RUNNING), absl::OkStatus());
  EXPECT_EQ(cluster_.Checkpoint(job->id(), 10), absl::OkStatus());
}

TEST_F(InitFromTest, ACheckpointOfItsOwnIsResumedFromAndNeverTheOthersAgain) {
  const auto job = Submit(absl::StrCat("job: ", base_, ", step: 40"));
  ASSERT_EQ(job.status(), absl::OkStatus());
  const std::string& id = job->id();
  ASSERT_EQ(cluster_.Start(id), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(id).attempt().resume().step(), 40);
  const std::string worker = cluster_.Job(id).attempt().placements(0).worker();
  // Without one it begins anew.
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

TEST_F(InitFromTest, TheCheckpointIsKeptUntilTheJobHasEnded) {
  const auto job = Submit("job: base, step: 40");
  ASSERT_EQ(job.status(), absl::OkStatus());
  EXPECT_EQ(Delete(40).code(), Code::kFailedPrecondition);
  v1::KillJobRequest kill;
  kill.set_request_id(cluster_.Id());
  kill.set_job(job->id());
  ASSERT_EQ(cluster_.Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  EXPECT_EQ(Delete(40), absl::OkStatus());
}

TEST_F(InitFromTest, WhatCannotBeBegunWithIsRefusedByItsField) {
  const auto refused = [this](const std::string& init, Code code, const std::string& text) {
    const absl::Status status = Submit(init).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
  };
  refused("job: nobody", Code::kNotFound, "init_from.job: 'nobody' is no job");
  refused("job: base, step: 77", Code::kNotFound,
          "init_from: base-1 has no committed checkpoint at step 77; run 'nibble checkpoint list");
  refused("path: /runs/base", Code::kInvalidArgument, "init_from.path: '/runs/base' is for");
  const std::string second = cluster_.Submit(1, "base");
  refused(absl::StrCat("job: ", second), Code::kNotFound, "has no good checkpoint");
  refused("job: base", Code::kInvalidArgument,
          absl::StrCat("init_from.job: 'base' is the name of ", base_, ", ", second,
                       "; give the id of one"));
  std::string other = TestCluster::Spec("tuned", 1);
  other.replace(other.find("tiny-hybrid"), 11, "{preset: tiny-hybrid, d_ff: 1024}");
  const absl::Status wider =
      SubmitSpec(absl::StrCat(other, "init_from: {job: ", base_, "}\n")).status();
  EXPECT_EQ(wider.code(), Code::kInvalidArgument) << wider;
  EXPECT_TRUE(absl::StartsWith(wider.message(), "model.d_ff: 1024, but ")) << wider;
  EXPECT_TRUE(absl::StrContains(wider.message(), base_)) << wider;
}

TEST_F(InitFromTest, AForkOfSuchAJobBeginsWithThatJobsCheckpointAlone) {
  const auto job = Submit("job: base");
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ(cluster_.Start(job->id()), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job->id(), 10), absl::OkStatus());
  v1::ForkJobRequest request;
  request.set_request_id(cluster_.Id());
  request.mutable_checkpoint()->set_job(job->id());
  request.mutable_checkpoint()->set_step(10);
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
