// A change whose reply was lost is retried with its request id: it is applied once.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

enum class Loss : uint8_t { kWireCut, kCoordinatorKilled };

class Retry : public testing::TestWithParam<Loss> {
 protected:
  Retry() : bed_({.workers = 1}), wire_(Port(bed_.address())) {
    far_ = std::make_unique<CoordinatorStub>(wire_.address());
  }
  static int Port(const std::string& address) {
    return std::stoi(address.substr(address.rfind(':') + 1));
  }

  // Everything that a change may affect, as text, without what changes by itself.
  std::string World() {
    std::string world;
    const v1::ListJobsResponse jobs = bed_.Ask(kListJobs);
    for (v1::Job job : jobs.jobs()) {
      job.clear_state_reason();  // for a pending job the scheduler's, which changes by itself
      absl::StrAppend(&world, job.ShortDebugString(), "\n");
      for (const auto& event : bed_.Events(job.id())) {
        absl::StrAppend(&world, event.ShortDebugString(), "\n");
      }
      for (const auto& revision : bed_.Revisions(job.id())) {
        absl::StrAppend(&world, revision.ShortDebugString(), "\n");
      }
      for (const auto& checkpoint : bed_.Checkpoints(job.id())) {
        absl::StrAppend(&world, checkpoint.ShortDebugString(), "\n");
      }
    }
    absl::StrAppend(&world, bed_.Ask(kListQueues).ShortDebugString(), "\n");
    const v1::ListWorkersResponse workers = bed_.Ask(kListWorkers);
    for (v1::Worker worker : workers.workers()) {
      worker.clear_last_heard_ms();
      worker.clear_present();
      worker.clear_present_since_unix_ms();
      absl::StrAppend(&world, worker.ShortDebugString(), "\n");
    }
    return world;
  }

  // Sends the change, loses its reply on the wire, and sends it again, twice.
  template <class Request, class Response>
  Response LoseAndRetry(const Rpc<Request, Response>& rpc, Request request) {
    SCOPED_TRACE(request.GetDescriptor()->name());
    request.set_request_id(bed_.NewId());
    // Connects first, so that only the reply is lost.
    v1::ListQueuesResponse queues;
    EXPECT_TRUE(
        far_->Call(kListQueues, v1::ListQueuesRequest(), &queues, {.waits_for_ready = true}).ok());
    wire_.Set(TcpProxy::Mode::kMute);
    absl::Status lost;
    std::thread sender([&] {
      Response never;
      lost = far_->Call(rpc, request, &never);
    });
    EXPECT_TRUE(wire_.AwaitLost(1, kPatience));
    if (GetParam() == Loss::kCoordinatorKilled) bed_.Kill("coordinator");
    wire_.Set(TcpProxy::Mode::kCut);
    sender.join();
    EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost.message();
    if (GetParam() == Loss::kCoordinatorKilled) bed_.Restart("coordinator");
    wire_.Set(TcpProxy::Mode::kPass);

    const std::string once = World();
    Response again, and_again;
    const absl::Status retried = bed_.Call(rpc, request, &again);
    EXPECT_TRUE(retried.ok()) << retried.message();
    EXPECT_TRUE(bed_.Call(rpc, request, &and_again).ok());
    google::protobuf::util::MessageDifferencer differencer;
    // Fields that change by themselves.
    differencer.IgnoreField(v1::Worker::descriptor()->FindFieldByName("last_heard_ms"));
    differencer.IgnoreField(v1::Job::descriptor()->FindFieldByName("state_reason"));
    EXPECT_TRUE(differencer.Compare(again, and_again))
        << again.DebugString() << and_again.DebugString();
    EXPECT_EQ(World(), once);
    return again;
  }

  v1::CheckpointRef RefOf(const std::string& job) {
    const auto checkpoints = bed_.Checkpoints(job);
    EXPECT_FALSE(checkpoints.empty());
    return checkpoints.empty() ? v1::CheckpointRef() : checkpoints.back().ref();
  }

  ClusterBed bed_;
  TcpProxy wire_;
  std::unique_ptr<CoordinatorStub> far_;
};

TEST_P(Retry, EveryChangeOfAJobIsMadeOnce) {
  // No job runs: changes come from the requests only.
  v1::DrainWorkerRequest drain;
  drain.set_worker("worker-1");
  drain.set_reason("test");
  EXPECT_EQ(LoseAndRetry(kDrainWorker, drain).worker().mode(), v1::WORKER_MODE_DRAINING);

  v1::SubmitJobRequest submit;
  submit.set_spec_yaml(TinyJob{.steps = 1000}.Yaml(bed_.corpus()));
  const std::string job = LoseAndRetry(kSubmitJob, submit).job().id();
  const v1::ListJobsResponse jobs = bed_.Ask(kListJobs);
  ASSERT_EQ(jobs.jobs_size(), 1);
  EXPECT_EQ(jobs.jobs(0).id(), job);

  v1::SetRecipeRequest recipe = RecipeChange(job, "fprop", "bf16", "step:500");
  recipe.set_expected_revision(1);
  EXPECT_EQ(LoseAndRetry(kSetRecipe, recipe).revision(), 2);
  EXPECT_EQ(bed_.Revisions(job).size(), 2u);

  v1::RollbackRecipeRequest rollback = OfJob<v1::RollbackRecipeRequest>(job);
  rollback.set_expected_revision(2);
  rollback.set_revision(1);
  rollback.set_at("step:600");
  EXPECT_EQ(LoseAndRetry(kRollbackRecipe, rollback).revision(), 3);

  v1::SetJobPriorityRequest priority = OfJob<v1::SetJobPriorityRequest>(job);
  priority.set_priority(7);
  EXPECT_EQ(LoseAndRetry(kSetJobPriority, priority).job().scheduling().priority(), 7);

  v1::SetJobRestartPolicyRequest policy = OfJob<v1::SetJobRestartPolicyRequest>(job);
  policy.mutable_restart_policy()->set_max_without_progress(9);
  policy.mutable_restart_policy()->set_initial_backoff_ms(10);
  policy.mutable_restart_policy()->set_max_backoff_ms(20);
  (void)LoseAndRetry(kSetJobRestartPolicy, policy);
  EXPECT_EQ(bed_.Describe(job).restart_policy().max_without_progress(), 9);

  (void)LoseAndRetry(kPauseJob, OfJob<v1::PauseJobRequest>(job));
  EXPECT_EQ(bed_.Describe(job).state(), v1::JOB_STATE_PAUSED);
  (void)LoseAndRetry(kResumeJob, OfJob<v1::ResumeJobRequest>(job));
  EXPECT_EQ(bed_.Describe(job).state(), v1::JOB_STATE_QUEUED);
  (void)LoseAndRetry(kCancelJob, OfJob<v1::CancelJobRequest>(job));
  EXPECT_EQ(bed_.Describe(job).state(), v1::JOB_STATE_CANCELLED);

  submit.clear_request_id();
  const std::string second = LoseAndRetry(kSubmitJob, submit).job().id();
  EXPECT_NE(second, job);
  (void)LoseAndRetry(kKillJob, OfJob<v1::KillJobRequest>(second));
  EXPECT_EQ(bed_.Describe(second).state(), v1::JOB_STATE_CANCELLED);
}

TEST_P(Retry, EveryChangeOfACheckpointIsMadeOnce) {
  const std::string job = bed_.Submit({.steps = 30, .every = 10});
  bed_.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  // Tasks for workers are recorded but not sent: no worker is available.
  bed_.Drain("worker-1");
  bed_.Kill("worker-1");
  ASSERT_GE(bed_.Checkpoints(job).size(), 2u);
  const v1::CheckpointRef oldest = RefOf(job);

  v1::PinCheckpointRequest pin;
  *pin.mutable_ref() = oldest;
  EXPECT_EQ(LoseAndRetry(kPinCheckpoint, pin).checkpoint().pins_size(), 1);
  v1::UnpinCheckpointRequest unpin;
  *unpin.mutable_ref() = oldest;
  EXPECT_EQ(LoseAndRetry(kUnpinCheckpoint, unpin).checkpoint().pins_size(), 0);
  v1::DeleteCheckpointRequest erase;
  *erase.mutable_ref() = oldest;
  erase.set_reason("test");
  EXPECT_EQ(LoseAndRetry(kDeleteCheckpoint, erase).ref().step(), oldest.step());

  const v1::CheckpointRef next = RefOf(job);
  EXPECT_GT(next.step(), oldest.step());
  v1::VerifyCheckpointRequest verify;
  *verify.mutable_ref() = next;
  EXPECT_EQ(LoseAndRetry(kVerifyCheckpoint, verify).task(), 1);
  v1::ExportCheckpointRequest exported;
  *exported.mutable_ref() = next;
  exported.set_destination(bed_.root() + "/exported");
  EXPECT_EQ(LoseAndRetry(kExportCheckpoint, exported).task(), 2);

  v1::ForkJobRequest fork;
  *fork.mutable_checkpoint() = next;
  fork.set_name("fork");
  fork.add_settings("training.repeat=1");
  const std::string forked = LoseAndRetry(kForkJob, fork).job().id();
  EXPECT_EQ(bed_.Describe(forked).origin().checkpoint().step(), next.step());
}

TEST_P(Retry, EveryChangeOfTheClusterIsMadeOnce) {
  v1::UncordonWorkerRequest uncordon;
  uncordon.set_worker("worker-1");
  uncordon.set_clear_flags(true);
  EXPECT_EQ(LoseAndRetry(kUncordonWorker, uncordon).worker().mode(), v1::WORKER_MODE_OPEN);
  v1::SetQueueRequest queue;
  queue.mutable_queue()->set_name("night");
  queue.mutable_queue()->set_quota_slots(2);
  EXPECT_EQ(LoseAndRetry(kSetQueue, queue).queue().revision(), 1);
  v1::DeleteQueueRequest erase;
  erase.set_queue("night");
  erase.set_expected_revision(1);
  (void)LoseAndRetry(kDeleteQueue, erase);
}

TEST_P(Retry, ACheckpointOfARunningJobIsRequestedOnce) {
  const std::string job = bed_.Submit({.steps = 100'000, .every = 100'000});
  bed_.ExpectStep(job, 5);
  (void)bed_.AskAbout(job, kPauseJob);
  bed_.ExpectState(job, v1::JOB_STATE_PAUSED);
  // A paused job takes the checkpoint when it resumes: until then nothing changes by itself.
  v1::CheckpointJobRequest request = OfJob<v1::CheckpointJobRequest>(job);
  request.set_request_id(bed_.NewId());
  v1::CheckpointJobResponse first, again;
  ASSERT_TRUE(bed_.Call(kCheckpointJob, request, &first).ok());
  if (GetParam() == Loss::kCoordinatorKilled) {
    bed_.Kill("coordinator");
    bed_.Restart("coordinator");
  }
  ASSERT_TRUE(bed_.Call(kCheckpointJob, request, &again).ok());
  (void)bed_.AskAbout(job, kResumeJob);
  bed_.ExpectSeen(job, [](const JobWatch::Seen& seen) { return seen.job.checkpoint_step() > 0; });
  int64_t requested = 0;
  for (const v1::JobEvent& event : bed_.Events(job)) {
    requested += event.kind() == v1::JOB_EVENT_KIND_CHECKPOINT && event.text() == "requested: test";
  }
  EXPECT_EQ(requested, 1) << bed_.Story(job);
  EXPECT_EQ(bed_.Checkpoints(job).size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(AnswerIsLost, Retry,
                         testing::Values(Loss::kWireCut, Loss::kCoordinatorKilled),
                         [](const auto& info) {
                           return info.param == Loss::kWireCut ? "WireCut" : "CoordinatorKilled";
                         });

}  // namespace
}  // namespace nibble
