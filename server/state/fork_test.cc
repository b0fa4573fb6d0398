// Forks of a job: the timeline, the checkpoint and the spec of the new job.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_spec.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

using Code = absl::StatusCode;
using testing::ElementsAre;
using testing::Pair;

// A job that runs, whose recipe changes at steps 40 and 900, with a checkpoint at step 100.
class ForkTest : public testing::Test {
 protected:
  ForkTest() {
    cluster_.AddWorkers(2, 2);
    job_ = cluster_.Submit();
    EXPECT_EQ(cluster_.Start(job_), absl::OkStatus());
    for (const char* at : {"step:40", "step:900"}) {
      v1::SetRecipeRequest request;
      request.set_request_id(cluster_.Id());
      request.set_job(job_);
      request.set_expected_revision(-1);
      request.set_at(at);
      v1::FieldSetting& setting = *request.mutable_change()->add_set();
      setting.set_field("fprop");
      setting.set_value("bf16");
      EXPECT_EQ(cluster_.Do<v1::SetRecipeResponse>(request).status(), absl::OkStatus());
    }
    EXPECT_EQ(cluster_.Checkpoint(job_, 100), absl::OkStatus());
  }
  v1::ForkJobRequest Fork() {
    v1::ForkJobRequest request;
    request.set_request_id(cluster_.Id());
    request.mutable_checkpoint()->set_job(job_);
    request.mutable_checkpoint()->set_step(100);
    v1::FieldSetting& setting = *request.mutable_change()->add_set();
    setting.set_field("wgrad");
    setting.set_value("bf16");
    return request;
  }
  // The numbers and first steps of a job's revisions.
  std::vector<std::pair<int64_t, int64_t>> Revisions(const std::string& job) const {
    std::vector<std::pair<int64_t, int64_t>> found;
    for (const v1::RecipeRevision& r : cluster_.state().FindTimeline(job)->revisions()) {
      found.emplace_back(r.number(), r.first_step());
    }
    return found;
  }

  TestCluster cluster_;
  std::string job_;
};

TEST_F(ForkTest, AForkIsANewJobWithTheParentsTimelineUpToTheStep) {
  const auto response = cluster_.Do<v1::ForkJobResponse>(Fork());
  ASSERT_EQ(response.status(), absl::OkStatus());
  const std::string fork = response->job().id();
  EXPECT_EQ(fork, "train-2");
  EXPECT_THAT(Revisions(fork), ElementsAre(Pair(1, 0), Pair(2, 40), Pair(3, 100)));
  EXPECT_THAT(Revisions(job_), ElementsAre(Pair(1, 0), Pair(2, 40), Pair(3, 900)));
  const auto& ours = cluster_.state().FindTimeline(fork)->revisions();
  const auto& parents = cluster_.state().FindTimeline(job_)->revisions();
  EXPECT_EQ(ours[1].recipe().SerializeAsString(), parents[1].recipe().SerializeAsString());
  EXPECT_EQ(ours[2].recipe().set().rbegin()->field(), "wgrad");
  EXPECT_EQ(cluster_.StateOf(fork), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(cluster_.Job(fork).last_attempt(), 0);
}

TEST_F(ForkTest, AForkCanIncludePendingRevisions) {
  v1::ForkJobRequest request = Fork();
  request.set_with_pending(true);
  const auto response = cluster_.Do<v1::ForkJobResponse>(request);
  ASSERT_EQ(response.status(), absl::OkStatus());
  EXPECT_THAT(Revisions(response->job().id()),
              ElementsAre(Pair(1, 0), Pair(2, 40), Pair(4, 100), Pair(5, 900)));
}

TEST_F(ForkTest, AForkStartsFromTheParentsCheckpointAndKeepsItFromBeingDeleted) {
  const auto response = cluster_.Do<v1::ForkJobResponse>(Fork());
  ASSERT_EQ(response.status(), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 200), absl::OkStatus());
  v1::DeleteCheckpointRequest remove;
  remove.set_request_id(cluster_.Id());
  remove.mutable_ref()->set_job(job_);
  remove.mutable_ref()->set_step(100);
  EXPECT_EQ(cluster_.Do<v1::DeleteCheckpointResponse>(remove).status().code(),
            Code::kFailedPrecondition);
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  ASSERT_EQ(cluster_.Launch(response->job().id()), absl::OkStatus());
  const v1::CheckpointRef& resume = cluster_.Job(response->job().id()).attempt().resume();
  EXPECT_EQ(resume.job(), job_);
  EXPECT_EQ(resume.step(), 100);
}

TEST_F(ForkTest, AForkNeedsACommittedCheckpoint) {
  v1::ForkJobRequest request = Fork();
  request.mutable_checkpoint()->set_step(101);
  EXPECT_EQ(cluster_.Do<v1::ForkJobResponse>(request).status().code(), Code::kNotFound);
  ASSERT_EQ(cluster_.Shard(job_, 300, 0), absl::OkStatus());
  request.mutable_checkpoint()->set_step(300);
  EXPECT_EQ(cluster_.Do<v1::ForkJobResponse>(request).status().code(), Code::kNotFound);
  request.mutable_checkpoint()->set_step(-1);
  const auto newest = cluster_.Do<v1::ForkJobResponse>(request);
  ASSERT_EQ(newest.status(), absl::OkStatus());
  EXPECT_EQ(newest->job().origin().checkpoint().step(), 100);
}

TEST_F(ForkTest, AForkFromAnUnknownAttemptIsRefused) {
  for (const int64_t step : {int64_t{100}, int64_t{-1}}) {
    v1::ForkJobRequest request = Fork();
    request.mutable_checkpoint()->set_step(step);
    for (const int64_t attempt : {int64_t{2}, int64_t{99}, int64_t{-1}}) {
      request.mutable_checkpoint()->set_attempt(attempt);
      const absl::Status status = cluster_.Do<v1::ForkJobResponse>(request).status();
      EXPECT_EQ(status.code(), Code::kNotFound) << attempt;
      EXPECT_EQ(status.message().substr(0, 20), "checkpoint.attempt: ") << status;
    }
    request.mutable_checkpoint()->set_attempt(1);
    const auto fork = cluster_.Do<v1::ForkJobResponse>(request);
    ASSERT_EQ(fork.status(), absl::OkStatus());
    EXPECT_EQ(fork->job().origin().checkpoint().attempt(), 1);
  }
}

TEST_F(ForkTest, AForkedSpecCanBeSubmitted) {
  v1::ForkJobRequest request = Fork();
  request.set_name("ablation");
  const auto response = cluster_.Do<v1::ForkJobResponse>(request);
  ASSERT_EQ(response.status(), absl::OkStatus());
  v1::SubmitJobRequest again;
  again.set_request_id(cluster_.Id());
  again.set_spec_yaml(cluster_.state().FindSpec(response->job().id())->spec_yaml());
  const auto submitted = cluster_.Do<v1::SubmitJobResponse>(again);
  ASSERT_EQ(submitted.status(), absl::OkStatus());
  EXPECT_EQ(submitted->job().name(), "ablation");
}

TEST_F(ForkTest, AForkMayStopEarlierAndRepeatTheRunWithOtherSamples) {
  v1::ForkJobRequest request = Fork();
  request.add_settings("training.stop_at=150");
  request.add_settings("training.repeat=2");
  request.add_settings("checkpoints.at_end=false");
  const auto response = cluster_.Do<v1::ForkJobResponse>(request);
  ASSERT_EQ(response.status(), absl::OkStatus());
  EXPECT_EQ(response->job().shape().steps(), 150);
  EXPECT_EQ(response->job().shape().decay_first_step(), 150);
  const auto parent = ParseJobSpec(cluster_.state().FindSpec(job_)->spec_yaml());
  const auto spec = ParseJobSpec(cluster_.state().FindSpec(response->job().id())->spec_yaml());
  ASSERT_EQ(spec.status(), absl::OkStatus());
  EXPECT_EQ(EndStep(*spec), 150);
  EXPECT_EQ(spec->training.repeat, 2);
  EXPECT_FALSE(spec->checkpoints.at_end);
  // The schedule is the parent's.
  EXPECT_EQ(spec->training.steps, parent->training.steps);
  EXPECT_EQ(spec->optimizer, parent->optimizer);
}

TEST_F(ForkTest, AForkThatTrainsAnotherModelOrNoStepIsRefused) {
  for (const char* setting : {"training.steps=2000", "training.seed=7", "data.sequence=32",
                              "model=tiny-llama", "training.stop_at=100", "training.stop_at=1001",
                              "checkpointsx=1", "metrics.log_every=0", "notify"}) {
    v1::ForkJobRequest request = Fork();
    request.add_settings(setting);
    EXPECT_EQ(cluster_.Do<v1::ForkJobResponse>(request).status().code(), Code::kInvalidArgument)
        << setting;
  }
}

}  // namespace
}  // namespace nibble
