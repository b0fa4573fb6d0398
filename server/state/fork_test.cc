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
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
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
  EXPECT_EQ(fork, "train-fork1-2");
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

TEST_F(ForkTest, AForkWithoutANameGetsOneThatNoJobHas) {
  const auto name = [this](const std::string& parent) {
    v1::ForkJobRequest request = Fork();
    request.mutable_checkpoint()->set_job(parent);
    request.mutable_checkpoint()->set_step(-1);
    const auto response = cluster_.Do<v1::ForkJobResponse>(request);
    EXPECT_EQ(response.status(), absl::OkStatus());
    return response.ok() ? response->job().name() : "";
  };
  EXPECT_EQ(name(job_), "train-fork1");
  EXPECT_EQ(name(job_), "train-fork2");
  // The id of a job that a user named so is not mistaken for a name.
  EXPECT_EQ(cluster_.Submit(1, "train-fork3"), "train-fork3-4");
  EXPECT_EQ(name(job_), "train-fork4");
  // A fork of a fork is no fork-fork.
  const std::string fork = "train-fork1-2";
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  ASSERT_EQ(cluster_.Start(fork), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(fork, 150), absl::OkStatus());
  v1::ForkJobRequest again = Fork();
  again.mutable_checkpoint()->set_job(fork);
  again.mutable_checkpoint()->set_step(150);
  again.mutable_change()->mutable_set(0)->set_field("dgrad");
  const auto second = cluster_.Do<v1::ForkJobResponse>(again);
  ASSERT_EQ(second.status(), absl::OkStatus());
  EXPECT_EQ(second->job().name(), "train-fork5");
}

TEST_F(ForkTest, AForkThatWouldRepeatItsParentIsRefusedWithTheRemedy) {
  const auto fork = [this](const std::string& field, const std::string& value) {
    v1::ForkJobRequest request = Fork();
    request.clear_change();
    request.set_with_pending(true);
    if (!field.empty()) {
      v1::FieldSetting& setting = *request.mutable_change()->add_set();
      setting.set_field(field);
      setting.set_value(value);
    }
    return request;
  };
  const absl::Status none = cluster_.Do<v1::ForkJobResponse>(fork("", "")).status();
  EXPECT_EQ(none.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(none.message()),
              AllOf(HasSubstr("would repeat train-1 from step 100 bit for bit"),
                    HasSubstr("--set FIELD=VALUE"), HasSubstr("--spec training.repeat=1")));
  // What the recipe has already is no difference, nor are name, priority and queue.
  v1::ForkJobRequest same = fork("fprop", "bf16");
  same.set_name("other");
  *same.mutable_scheduling() = cluster_.Job(job_).scheduling();
  same.mutable_scheduling()->set_priority(7);
  EXPECT_EQ(cluster_.Do<v1::ForkJobResponse>(same).status().code(), Code::kInvalidArgument);
  // Without a later revision of its parent, other than in name, it does something else, and so it
  // does on other ranks.
  v1::SetRecipeRequest later;
  later.set_request_id(cluster_.Id());
  later.set_job(job_);
  later.set_expected_revision(-1);
  later.set_at("step:950");
  *later.mutable_change() = fork("dgrad", "bf16").change();
  v1::ForkJobRequest without = fork("", "");
  without.set_with_pending(false);
  EXPECT_EQ(cluster_.Do<v1::ForkJobResponse>(without).status().code(), Code::kInvalidArgument);
  ASSERT_EQ(cluster_.Do<v1::SetRecipeResponse>(later).status(), absl::OkStatus());
  EXPECT_EQ(cluster_.Do<v1::ForkJobResponse>(without).status(), absl::OkStatus());
  v1::ForkJobRequest narrow = fork("", "");
  *narrow.mutable_scheduling() = cluster_.Job(job_).scheduling();
  narrow.mutable_scheduling()->clear_allowed_ranks();
  narrow.mutable_scheduling()->add_allowed_ranks(1);
  EXPECT_EQ(cluster_.Do<v1::ForkJobResponse>(narrow).status(), absl::OkStatus());
  v1::ForkJobRequest resampled = fork("", "");
  resampled.add_settings("training.repeat=1");
  EXPECT_EQ(cluster_.Do<v1::ForkJobResponse>(resampled).status(), absl::OkStatus());
  // The fork of a job that ended early continues it.
  v1::KillJobRequest kill;
  kill.set_request_id(cluster_.Id());
  kill.set_job(job_);
  ASSERT_EQ(cluster_.Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  EXPECT_EQ(cluster_.Do<v1::ForkJobResponse>(fork("", "")).status(), absl::OkStatus());
}

TEST_F(ForkTest, AForkOfTheLastStepIsRefusedWithTheRemedy) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 1000), absl::OkStatus());
  v1::ForkJobRequest request = Fork();
  request.mutable_checkpoint()->set_step(-1);
  const absl::Status status = cluster_.Do<v1::ForkJobResponse>(request).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("checkpoint.step: 1000 leaves no step before the end of the fork, "
                              "1000; choose an earlier checkpoint"),
                    HasSubstr("'nibble checkpoint list train-1'")));
}

TEST_F(ForkTest, AForkMayChangeThePresetAndKeepsWhatIsSetOverIt) {
  v1::ForkJobRequest request = Fork();
  v1::FieldSetting& setting = *request.mutable_change()->add_set();
  setting.set_field("preset");
  setting.set_value("mxfp4");
  const auto response = cluster_.Do<v1::ForkJobResponse>(request);
  ASSERT_EQ(response.status(), absl::OkStatus());
  const v1::Recipe& recipe =
      cluster_.state().FindTimeline(response->job().id())->revisions().rbegin()->recipe();
  EXPECT_EQ(recipe.preset(), "mxfp4");
  ASSERT_EQ(recipe.set_size(), 2);
  EXPECT_EQ(recipe.set(0).field(), "fprop");  // the parent's, since step 40
  EXPECT_EQ(recipe.set(1).field(), "wgrad");
  request.set_request_id(cluster_.Id());
  request.mutable_change()->mutable_set(1)->set_value("mxfp5");
  const absl::Status unknown = cluster_.Do<v1::ForkJobResponse>(request).status();
  EXPECT_EQ(unknown.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("preset: 'mxfp5'"));
}

}  // namespace
}  // namespace nibble
