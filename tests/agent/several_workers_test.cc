// Gangs that run on several workers, and workers that are lost.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/agent/cluster_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class SeveralWorkers : public TestClusterProcesses {
 protected:
  // Whether every shard of the newest checkpoint has at least the given number of replicas.
  bool IsReplicated(const std::string& job, int copies) {
    const v1::DescribeCheckpointResponse newest = Newest(job);
    if (newest.shards().empty()) return false;
    for (const v1::CheckpointShard& shard : newest.shards()) {
      if (shard.holders_size() < copies) return false;
    }
    return true;
  }
  static std::string WorkerOf(const v1::Job& job, int32_t rank) {
    for (const v1::Placement& placement : job.attempt().placements()) {
      if (placement.first_rank() <= rank &&
          rank < placement.first_rank() + placement.slots_size()) {
        return placement.worker();
      }
    }
    return "";
  }
  int Checkpoints(const std::string& job) {
    v1::ListCheckpointsRequest request;
    request.set_job(job);
    v1::ListCheckpointsResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->ListCheckpoints(&context, request, &response).ok());
    return response.checkpoints_size();
  }
  template <class Request>
  static Request OfJob(const std::string& job) {
    Request request;
    request.set_job(job);
    return request;
  }
  template <class Response, class Request>
  void Ask(grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*, const Request&,
                                                         Response*),
           Request request) {
    request.set_request_id("request-asked-" + std::to_string(++asked_));
    Response response;
    grpc::ClientContext context;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  // SIGKILL, as in a crash.
  void KillRanks(const std::string& worker) {
    for (const auto& entry : fs::directory_iterator(root_ / worker / "processes")) {
      std::ifstream file(entry.path());
      const auto record = nlohmann::json::parse(file, nullptr, false);
      if (record.is_object()) (void)kill(record.at("pid").get<pid_t>(), SIGKILL);
    }
  }
  // Returns the task's number.
  int64_t Verify(const v1::CheckpointRef& ref) {
    v1::VerifyCheckpointRequest request;
    request.set_request_id("request-verify");
    *request.mutable_ref() = ref;
    v1::VerifyCheckpointResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->VerifyCheckpoint(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.task();
  }
  int64_t Export(const v1::CheckpointRef& ref, const fs::path& destination) {
    v1::ExportCheckpointRequest request;
    request.set_request_id("request-export");
    *request.mutable_ref() = ref;
    request.set_destination(destination.string());
    v1::ExportCheckpointResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->ExportCheckpoint(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.task();
  }
  // Overwrites some bytes of every file with chunks in the tree.
  static void Damage(const fs::path& directory) {
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      if (entry.path().extension() != ".sst") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(entry.file_size() / 3));
      file.write("damage", 6);
    }
  }
  // The result of a task, as its checkpoint lists it.
  v1::CheckpointTask AwaitTask(const v1::CheckpointRef& ref, int64_t number) {
    v1::CheckpointTask task;
    EXPECT_TRUE(Eventually([&] {
      v1::DescribeCheckpointRequest request;
      *request.mutable_ref() = ref;
      v1::DescribeCheckpointResponse response;
      grpc::ClientContext context;
      if (!stub_->DescribeCheckpoint(&context, request, &response).ok()) return false;
      for (const v1::CheckpointTask& one : response.checkpoint().tasks()) {
        if (one.number() == number) task = one;
      }
      return task.state() == v1::CHECKPOINT_TASK_STATE_DONE ||
             task.state() == v1::CHECKPOINT_TASK_STATE_FAILED;
    }));
    return task;
  }

  int asked_ = 0;
};

TEST_F(SeveralWorkers, AGangThatLosesAWorkerResumesFromReplicasWithBitwiseEqualLosses) {
  const std::string spec = Spec(2, 120, "checkpoints: {every: 5, keep_last: 2}\n");
  const std::map<int64_t, double> alone = LossesWithoutCluster(spec);
  ASSERT_EQ(alone.size(), 120u);

  StartCoordinator({"--lease-ms", "2000", "--copies", "2"});
  for (const char* name : {"w1", "w2", "w3"}) StartWorker(name, 1);
  const std::string job = Submit(spec);
  ASSERT_TRUE(Eventually([&] { return IsReplicated(job, 2); })) << Describe(job).DebugString();
  const v1::Job before = Describe(job);
  ASSERT_EQ(before.state(), v1::JOB_STATE_RUNNING) << before.DebugString();
  ASSERT_EQ(before.attempt().placements_size(), 2);
  KillWorker(WorkerOf(before, 1));

  const v1::Job after = Await(job, {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED});
  EXPECT_EQ(after.state(), v1::JOB_STATE_SUCCEEDED) << after.DebugString();
  EXPECT_GE(after.attempts(), 2);
  EXPECT_TRUE(after.recent_attempts().rbegin()->has_resume()) << after.DebugString();
  EXPECT_EQ(Losses(job), alone);
}

TEST_F(SeveralWorkers, TheRemainingRanksResumeFromTheShardsOfLostOnes) {
  StartCoordinator({"--lease-ms", "2000", "--copies", "2"});
  for (const char* name : {"w1", "w2"}) StartWorker(name, 1);
  const std::string job = Submit(Spec(2, 120, "checkpoints: {every: 5, keep_last: 2}\n"), {1, 2});
  ASSERT_TRUE(Eventually([&] { return IsReplicated(job, 2); })) << Describe(job).DebugString();
  const v1::Job before = Describe(job);
  ASSERT_EQ(before.attempt().world(), 2) << before.DebugString();
  KillWorker(WorkerOf(before, 0));
  const v1::Job after = Await(job, {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED});
  EXPECT_EQ(after.state(), v1::JOB_STATE_SUCCEEDED) << after.DebugString();
  const v1::Attempt& last = *after.recent_attempts().rbegin();
  EXPECT_EQ(last.world(), 1);
  EXPECT_GE(last.resume().step(), 5) << after.DebugString();
}

TEST_F(SeveralWorkers, AForkBeginsWithItsParentsShardsOnAnyWorker) {
  StartCoordinator({"--copies", "1"});
  for (const char* name : {"w1", "w2"}) StartWorker(name, 1);
  const std::string parent =
      Submit(Spec(2, 12, "checkpoints: {every: 4, keep_last: 8, at_end: true}\n"));
  ASSERT_EQ(Await(parent, {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED}).state(),
            v1::JOB_STATE_SUCCEEDED);
  v1::ForkJobRequest request;
  request.set_request_id("request-fork");
  request.mutable_checkpoint()->set_job(parent);
  request.mutable_checkpoint()->set_step(4);
  request.set_name("fork");
  v1::ForkJobResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->ForkJob(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const std::string fork = response.job().id();
  const v1::Job after = Await(fork, {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED});
  EXPECT_EQ(after.state(), v1::JOB_STATE_SUCCEEDED) << after.DebugString();
  // With the same recipe it repeats its parent's losses.
  const std::map<int64_t, double> parents = Losses(parent);
  for (const auto& [step, loss] : Losses(fork)) EXPECT_EQ(loss, parents.at(step)) << step;
  EXPECT_EQ(Losses(fork).size(), 8u);
}

TEST_F(SeveralWorkers, ACheckpointAcrossWorkersIsVerifiedAndExported) {
  StartCoordinator({"--copies", "1"});
  for (const char* name : {"w1", "w2"}) StartWorker(name, 1);
  const std::string job = Submit(Spec(2, 6, "checkpoints: {at_end: true}\n"));
  const v1::Job after = Await(job, {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED});
  ASSERT_EQ(after.state(), v1::JOB_STATE_SUCCEEDED) << after.DebugString();
  const v1::DescribeCheckpointResponse newest = Newest(job);
  ASSERT_EQ(newest.shards_size(), 2);
  // Each worker has one shard.
  ASSERT_EQ(newest.shards(0).holders_size(), 1);
  EXPECT_NE(newest.shards(0).holders(0), newest.shards(1).holders(0));

  const v1::CheckpointRef ref = newest.checkpoint().ref();
  const v1::CheckpointTask verified = AwaitTask(ref, Verify(ref));
  EXPECT_EQ(verified.state(), v1::CHECKPOINT_TASK_STATE_DONE) << verified.detail();
  EXPECT_THAT(verified.detail(), HasSubstr("all 2 shards pass their checksums"));

  const v1::CheckpointTask done = AwaitTask(ref, Export(ref, root_ / "model"));
  EXPECT_EQ(done.state(), v1::CHECKPOINT_TASK_STATE_DONE) << done.detail();
  EXPECT_TRUE(fs::exists(root_ / "model" / "config.json"));
  EXPECT_TRUE(fs::exists(root_ / "model" / "model.safetensors"));
}

TEST_F(SeveralWorkers, DamageWithoutAnIntactReplicaIsNamedAndTheCheckpointIsNotLoadedAgain) {
  StartCoordinator({"--copies", "1"});
  for (const char* name : {"w1", "w2"}) StartWorker(name, 1);
  const std::string job = Submit(Spec(2, 6, "checkpoints: {at_end: true}\n"));
  ASSERT_EQ(Await(job, {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED}).state(),
            v1::JOB_STATE_SUCCEEDED);
  const v1::DescribeCheckpointResponse newest = Newest(job);
  ASSERT_EQ(newest.shards_size(), 2);
  const std::string holder = newest.shards(1).holders(0);
  Damage(root_ / holder / "jobs" / job / "checkpoints");
  const v1::CheckpointRef ref = newest.checkpoint().ref();
  const v1::CheckpointTask verified = AwaitTask(ref, Verify(ref));
  EXPECT_EQ(verified.state(), v1::CHECKPOINT_TASK_STATE_FAILED);
  EXPECT_THAT(verified.detail(), HasSubstr("rank 1"));
  EXPECT_THAT(verified.detail(), HasSubstr("chunk"));
  v1::DescribeCheckpointRequest request;
  *request.mutable_ref() = ref;
  v1::DescribeCheckpointResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->DescribeCheckpoint(&context, request, &response).ok());
  EXPECT_EQ(response.checkpoint().state(), v1::CHECKPOINT_STATE_DAMAGED);
}

TEST_F(SeveralWorkers, IfTheNewestCheckpointIsDamagedTheJobResumesFromThePreviousOne) {
  const std::string spec = Spec(1, 120, "checkpoints: {every: 5, keep_last: 2}\n");
  const std::map<int64_t, double> alone = LossesWithoutCluster(spec);
  StartCoordinator();
  StartWorker("w1", 1);
  const std::string job = Submit(spec);
  ASSERT_TRUE(Eventually([&] { return Newest(job).checkpoint().ref().step() >= 10; }));
  KillWorker("w1");
  ASSERT_EQ(Describe(job).state(), v1::JOB_STATE_RUNNING);
  // All checkpoints but the oldest, including incomplete ones: step-000000000010-attempt-…
  std::map<std::string, fs::path> stored;
  for (const auto& entry : fs::directory_iterator(root_ / "w1" / "jobs" / job / "checkpoints")) {
    if (entry.is_directory()) stored[entry.path().filename().string()] = entry.path();
  }
  const auto oldest = std::find_if(stored.begin(), stored.end(), [](const auto& directory) {
    return directory.first.starts_with("step-");
  });
  ASSERT_NE(oldest, stored.end());
  for (const auto& [name, directory] : stored) {
    if (name != oldest->first) Damage(directory);
  }
  StartWorker("w1", 1);
  const v1::Job after = Await(job, {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED});
  ASSERT_EQ(after.state(), v1::JOB_STATE_SUCCEEDED) << after.DebugString();
  EXPECT_EQ(Losses(job), alone);
  const auto& attempts = after.recent_attempts();
  ASSERT_GE(attempts.size(), 3) << after.DebugString();
  EXPECT_THAT(attempts[1].reason(), HasSubstr("is damaged"));
  EXPECT_EQ(attempts.rbegin()->resume().step(), std::stoll(oldest->first.substr(5)));
}

TEST_F(SeveralWorkers, DamageFoundByAnotherWorkerIsReportedAndThePreviousCheckpointIsUsed) {
  const std::string spec = Spec(1, 60, "checkpoints: {every: 5, keep_last: 3}\n");
  const std::map<int64_t, double> alone = LossesWithoutCluster(spec);
  StartCoordinator({"--copies", "1"});
  for (const char* name : {"w1", "w2"}) StartWorker(name, 1);
  const std::string job = Submit(spec);
  // At least two: while one is being written, the next waits for a later step.
  ASSERT_TRUE(Eventually([&] { return Checkpoints(job) >= 2; }));
  Ask<v1::PauseJobResponse>(&v1::Coordinator::Stub::PauseJob, OfJob<v1::PauseJobRequest>(job));
  const v1::Job paused = Await(job, {v1::JOB_STATE_PAUSED});
  // One being written is also committed; paused ranks begin no other.
  ASSERT_TRUE(Eventually([&] {
    return paused.next_step() - Newest(job).checkpoint().ref().step() < 5;
  })) << Describe(job).DebugString();
  const int64_t newest_step = Newest(job).checkpoint().ref().step();
  const std::string holder = WorkerOf(paused, 0);
  ASSERT_EQ(Newest(job).shards(0).holders(0), holder);
  // Only its slots are unavailable, not its checkpoints.
  v1::DrainWorkerRequest cordon;
  cordon.set_worker(holder);
  cordon.set_cordon_only(true);
  Ask<v1::DrainWorkerResponse>(&v1::Coordinator::Stub::DrainWorker, cordon);
  const std::string prefix = "step-" + std::string(12 - std::to_string(newest_step).size(), '0') +
                             std::to_string(newest_step) + "-";
  int damaged = 0;
  for (const auto& entry : fs::directory_iterator(root_ / holder / "jobs" / job / "checkpoints")) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    Damage(entry.path());
    ++damaged;
  }
  ASSERT_EQ(damaged, 1);
  KillRanks(holder);
  ASSERT_TRUE(Eventually([&] { return !Describe(job).has_attempt(); }));
  Ask<v1::ResumeJobResponse>(&v1::Coordinator::Stub::ResumeJob, OfJob<v1::ResumeJobRequest>(job));

  const v1::Job after = Await(job, {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED});
  ASSERT_EQ(after.state(), v1::JOB_STATE_SUCCEEDED) << after.DebugString();
  EXPECT_EQ(Losses(job), alone);
  const auto& attempts = after.recent_attempts();
  ASSERT_EQ(attempts.size(), 3) << after.DebugString();
  EXPECT_EQ(attempts[1].resume().step(), newest_step);
  EXPECT_EQ(attempts[1].cause(), v1::FAILURE_CAUSE_CHECKPOINT) << after.DebugString();
  EXPECT_GT(attempts[2].resume().step(), 0);
  EXPECT_LT(attempts[2].resume().step(), newest_step);
  v1::DescribeCheckpointRequest request;
  *request.mutable_ref() = attempts[1].resume();
  v1::DescribeCheckpointResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->DescribeCheckpoint(&context, request, &response).ok());
  EXPECT_EQ(response.checkpoint().state(), v1::CHECKPOINT_STATE_DAMAGED);
  EXPECT_THAT(response.checkpoint().damage(), HasSubstr("on " + holder));
  // The worker that read it is not blamed.
  const std::string starter = attempts[1].placements(0).worker();
  EXPECT_NE(starter, holder);
  for (const v1::WorkerBlame& blame : after.blames()) EXPECT_NE(blame.worker(), starter);
}

TEST_F(SeveralWorkers, AJobWaitsForAFullDiskAndItsLossesAreUnchanged) {
  const std::string spec = Spec(1, 100, "checkpoints: {every: 10, keep_last: 1, at_end: true}\n");
  const std::map<int64_t, double> alone = LossesWithoutCluster(spec);
  StartCoordinator();
  if (!StartWorkerOnDisk("w1", 1, 128 << 20)) {
    GTEST_SKIP() << "this machine does not permit mounting a small disk";
  }
  const std::string job = Submit(spec);
  ASSERT_TRUE(Eventually([&] { return Newest(job).checkpoint().ref().step() >= 10; }));
  // All steps are still made; then the job waits for space to store its state, and reports that.
  // Space that a failed checkpoint frees is also filled.
  ASSERT_TRUE(Eventually([&] {
    FillDisk("w1");
    const v1::Job now = Describe(job);
    return now.next_step() == 100 && !now.trouble().empty();
  })) << Describe(job).DebugString();
  const v1::Job waits = Describe(job);
  EXPECT_EQ(waits.state(), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(waits.trouble(), HasSubstr("the disk is full"));
  EXPECT_THAT(waits.trouble(), HasSubstr("w1/jobs/" + job));
  EXPECT_LT(waits.checkpoint_step(), 100);
  FreeDisk("w1");
  const v1::Job after = Await(job, {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED});
  ASSERT_EQ(after.state(), v1::JOB_STATE_SUCCEEDED) << after.DebugString();
  EXPECT_EQ(after.attempts(), 1) << after.DebugString();
  EXPECT_EQ(after.checkpoint_step(), 100);
  EXPECT_EQ(after.trouble(), "");
  EXPECT_EQ(after.blames_size(), 0);
  // The event log is also complete.
  EXPECT_EQ(Losses(job), alone);
  v1::ListJobEventsRequest request;
  request.set_job(job);
  v1::ListJobEventsResponse events;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->ListJobEvents(&context, request, &events).ok());
  EXPECT_GE(std::count_if(events.events().begin(), events.events().end(),
                          [](const v1::JobEvent& event) {
                            return event.kind() == v1::JOB_EVENT_KIND_TROUBLE;
                          }),
            1);
}

}  // namespace
}  // namespace nibble
