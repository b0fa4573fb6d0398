// A job that begins with the weights of another job's checkpoint, on a different number of ranks,
// and is killed while it runs.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cluster/cluster_files.h"
#include "common/process/process.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using nlohmann::json;

constexpr char kNoValidation[] = "validate_every: 0";

std::string With(const std::string& yaml, const std::string& from, const std::string& to) {
  EXPECT_NE(yaml.find(from), std::string::npos) << yaml;
  return absl::StrReplaceAll(yaml, {{from, to}});
}

double ValidationLoss(const std::vector<json>& log, size_t step) {
  for (const json& event : EventsOf(log, "validation")) {
    if (event.at("step") == step) return event.at("loss").get<double>();
  }
  ADD_FAILURE() << "no validation after " << step << " steps";
  return 0;
}

// 40 steps on one rank, with a validation and a checkpoint after the last.
std::string TrainBase(ClusterBed& bed) {
  const TinyJob base = {.name = "base", .steps = 40, .every = 20, .recipe = "bf16"};
  const std::string job = bed.SubmitSpec(
      With(base.Yaml(bed.corpus()), kNoValidation, "validate_every: 40, validation_batches: 2"));
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(bed.Describe(job).checkpoint_step(), 40) << bed.Story(job);
  return job;
}

TEST(InitFrom, TheFirstValidationLossIsTheLastOneOfTheOtherJob) {
  ClusterBed bed({.workers = 2});
  const std::string base = TrainBase(bed);
  // A learning rate below the weights' precision: every step uses the initial weights.
  TinyJob probe = {.name = "probe", .ranks = 2, .steps = 10, .recipe = "bf16"};
  probe.more = "init_from: {job: base}\n";
  std::string yaml =
      With(probe.Yaml(bed.corpus()), kNoValidation, "validate_every: 1, validation_batches: 2");
  yaml = With(yaml, "lr: 0.002", "lr: 1.0e-12");
  const std::string job = bed.SubmitSpec(yaml);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const double ended_with = ValidationLoss(bed.EventLog(base), 40);
  const double began_with = ValidationLoss(bed.EventLog(job), 1);
  EXPECT_NEAR(began_with / ended_with, 1.0, 1e-4) << began_with << " and " << ended_with;
  EXPECT_EQ(EventsOf(bed.EventLog(job), "step").size(), 10u);
}

TEST(InitFrom, AKilledJobResumesFromItsOwnCheckpointWithTheSameLosses) {
  ClusterBed bed({.workers = 2});
  const std::string base = TrainBase(bed);
  const std::string holder = bed.Describe(base).recent_attempts(0).placements(0).worker();
  TinyJob tuned = {.name = "tuned", .ranks = 2, .steps = 300, .seed = 9};
  // The undisturbed run: without a cluster, from the same checkpoint.
  tuned.more = absl::StrCat("init_from: {path: ", bed.cluster().paths().Data(holder), "/jobs/",
                            base, ", step: 40}\n");
  const auto& undisturbed = bed.UndisturbedLosses(tuned);
  tuned.more = absl::StrCat("init_from: {job: ", base, ", step: 40}\n");
  const std::string job = bed.Submit(tuned);
  v1::DeleteCheckpointRequest remove;
  remove.mutable_ref()->set_job(base);
  remove.mutable_ref()->set_step(40);
  v1::DeleteCheckpointResponse removed;
  EXPECT_EQ(bed.Call(kDeleteCheckpoint, remove, &removed).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() >= 10; }))
      << bed.Story(job);
  bed.Kill(WorkerRole(2));
  bed.Restart(WorkerRole(2));
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const v1::Job described = bed.Describe(job);
  EXPECT_TRUE(described.origin().weights_only());
  ASSERT_GE(described.recent_attempts_size(), 2) << bed.Story(job);
  const v1::Attempt& first = described.recent_attempts(0);
  EXPECT_EQ(first.resume().job(), base);
  EXPECT_EQ(first.resume().step(), 40);
  const v1::Attempt& last = *described.recent_attempts().rbegin();
  EXPECT_EQ(last.resume().job(), job);
  EXPECT_GE(last.resume().step(), 10);
  EXPECT_EQ(FirstDifference(LossBits(bed.EventLog(job)), undisturbed), "") << bed.Story(job);
  // The job has ended: nothing retains the other job's checkpoint any more.
  EXPECT_TRUE(bed.Call(kDeleteCheckpoint, remove, &removed).ok());
}

TEST(InitFrom, AModelOfOtherShapesIsRefusedAtSubmission) {
  ClusterBed bed({.workers = 1});
  const std::string base = TrainBase(bed);
  const TinyJob wider = {.name = "wider", .more = absl::StrCat("init_from: {job: ", base, "}\n")};
  v1::SubmitJobRequest request;
  request.set_spec_yaml(With(wider.Yaml(bed.corpus()), "model: tiny-transformer",
                             "model: {preset: tiny-transformer, d_ff: 256}"));
  v1::SubmitJobResponse response;
  const absl::Status status = bed.Call(kSubmitJob, request, &response);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().rfind("model.d_ff: 256, but 384", 0), 0u) << status.message();
}

}  // namespace
}  // namespace nibble
