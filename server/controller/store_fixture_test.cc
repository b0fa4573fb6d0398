// Stores that earlier versions of this program have written are read by this one.
#include <filesystem>
#include <string>

#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "server/controller/testing.h"

namespace nibble {
namespace {

TEST(StoreFixture, AStoreOfFormatVersion1IsReadWithItsJobsAndHistory) {
  const file_testing::TempDirectory directory;
  const std::string store = directory.Path("store");
  // Opening a store writes to it.
  std::filesystem::create_directories(store + "/db");
  for (const auto& entry : std::filesystem::recursive_directory_iterator("testdata/stores/v1")) {
    if (entry.is_directory()) continue;
    std::filesystem::copy(
        std::filesystem::canonical(entry.path()),
        store + "/" + entry.path().lexically_relative("testdata/stores/v1").string());
  }
  ControllerOptions options;
  options.cluster = "fixture";
  options.object_store = "s3://runs/lab";
  options.fresh_id = [] { return std::string(32, '8'); };
  TestCoordinator coordinator(options, store);
  EXPECT_EQ(coordinator.store().Verify(), absl::OkStatus());

  const v1::Job running = coordinator.Job("train-1");
  EXPECT_EQ(running.state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(running.attempts(), 1);
  EXPECT_EQ(running.checkpoint_step(), 40);
  EXPECT_EQ(coordinator.Job("waiting-2").state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(coordinator.Job("cancelled-3").state(), v1::JOB_STATE_CANCELLED);
  const auto revisions = coordinator.controller().Read([] {
    v1::ListRecipeRevisionsRequest request;
    request.set_job("train-1");
    return request;
  }());
  ASSERT_EQ(revisions.status(), absl::OkStatus());
  EXPECT_EQ(revisions->revisions_size(), 2);
  coordinator.controller().Inspect([](const State& state) {
    EXPECT_EQ(state.store().id(), std::string(32, '7'));
    // Its epoch had no id.
    EXPECT_EQ(state.store().epoch(), 2);
    EXPECT_EQ(state.store().epoch_id(), std::string(32, '8'));
    EXPECT_NE(state.FindWorker("w1"), nullptr);
    EXPECT_NE(state.FindQueue("nights"), nullptr);
  });
  // Nothing of it was ever uploaded; that begins with the first worker that has the checkpoint.
  EXPECT_FALSE(running.has_uploads());
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job("train-1").uploads().place(), "s3://runs/lab/train-1");
  EXPECT_EQ(coordinator.Job("train-1").uploads().open().step(), 40);
  // It can be written to.
  v1::SubmitJobRequest request;
  request.set_request_id("after-upgrade");
  request.set_spec_yaml(TestCoordinator::Spec("new", 1));
  EXPECT_EQ(coordinator.Do<v1::SubmitJobResponse>(request).status(), absl::OkStatus());
}

}  // namespace
}  // namespace nibble
