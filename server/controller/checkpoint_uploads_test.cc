// When checkpoints are copied to object storage, and what becomes of failures.
#include "server/controller/checkpoint_uploads.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/metrics/exposition_testing.h"
#include "common/metrics/metric_book.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/controller.h"
#include "server/controller/reads.h"
#include "server/controller/testing.h"
#include "server/state/job_uploads.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kReportMs = 5000;

class CheckpointUploadsTest : public testing::Test {
 protected:
  CheckpointUploadsTest() : coordinator_(Options()), worker_(coordinator_, "w1", 2) {
    worker_.Obey();
    job_ = coordinator_.Submit(2, "train", "checkpoints: {every: 10, keep_last: 2}\n");
    coordinator_.Tick();
    worker_.Obey(1);
  }
  static ControllerOptions Options() {
    ControllerOptions options;
    options.fresh_id = FixedId;
    options.object_store = "s3://runs/lab";
    options.object_store_keep = 3;
    return options;
  }

  void Store(int64_t step) {
    worker_.Store(step);
    coordinator_.Tick();
    ASSERT_EQ(worker_.Report(), absl::OkStatus());
  }
  // The worker ends its task.
  void End(v1::CheckpointTaskState state, const std::string& detail = "") {
    ASSERT_EQ(worker_.desired.tasks_size(), 1);
    v1::TaskReport& report = *worker_.report.add_tasks();
    *report.mutable_ref() = worker_.desired.tasks(0).ref();
    report.set_task(worker_.desired.tasks(0).task());
    report.set_state(state);
    report.set_detail(detail);
    ASSERT_EQ(worker_.Report(), absl::OkStatus());
    worker_.report.clear_tasks();
    Look();
  }
  void Look() {
    coordinator_.Tick();
    ASSERT_EQ(worker_.Report(), absl::OkStatus());
  }
  // Time passes; the worker reports within its lease.
  void Wait(int64_t ms) {
    for (; ms > 0; ms -= kReportMs) {
      coordinator_.clock.Advance(std::min(ms, kReportMs));
      Look();
    }
  }
  // Step of the checkpoint that the worker is to upload; -1: none.
  int64_t Wanted() const {
    return worker_.desired.tasks().empty() ? -1 : worker_.desired.tasks(0).ref().step();
  }
  v1::JobUploads Uploads() { return coordinator_.Job(job_).uploads(); }
  std::vector<int64_t> Stored() {
    v1::ListCheckpointsRequest request;
    request.set_job(job_);
    const auto listed = coordinator_.controller().Read(request);
    std::vector<int64_t> steps;
    for (const v1::Checkpoint& one : listed->checkpoints()) {
      steps.push_back(one.ref().step());
    }
    return steps;
  }
  void Fail(const std::string& detail) { End(v1::CHECKPOINT_TASK_STATE_FAILED, detail); }
  void Restart() {
    coordinator_.Restart();
    worker_.Reconnect();
    Look();
  }
  Upload Find(const std::string& place) {
    Upload found;
    coordinator_.controller().Inspect([&](const State& state) {
      found = FindUpload(state, job_, place, coordinator_.clock.NowUnixMs());
    });
    return found;
  }
  double Failing() {
    MetricPage page(CoordinatorRows());
    return Exposition::Parse(page.Render(coordinator_.controller().metrics().book()))
        .value()
        .Value("nibble_checkpoint_uploads_failing_jobs");
  }

  TestCoordinator coordinator_;
  TestWorker worker_;
  std::string job_;
};

TEST_F(CheckpointUploadsTest, TheNewestIsUploadedAndThoseDuringAnUploadArePassedOver) {
  EXPECT_EQ(Wanted(), -1);
  Store(10);
  ASSERT_EQ(Wanted(), 10);
  const v1::DesiredTask& task = worker_.desired.tasks(0);
  EXPECT_EQ(task.kind(), v1::CHECKPOINT_TASK_KIND_UPLOAD);
  EXPECT_EQ(task.destination(), "s3://runs/lab/" + job_);
  EXPECT_EQ(task.keep(), 3);
  EXPECT_EQ(task.shards_size(), 2);
  Store(20);
  Store(30);
  EXPECT_EQ(Wanted(), 10);  // also kept, although two newer ones are there
  End(v1::CHECKPOINT_TASK_STATE_DONE);
  EXPECT_EQ(Wanted(), 30);
  End(v1::CHECKPOINT_TASK_STATE_DONE);
  EXPECT_EQ(Wanted(), -1);
  Wait(10 * kFirstUploadPauseMs);
  EXPECT_EQ(Wanted(), -1);
  EXPECT_EQ(Failing(), 0);
  EXPECT_EQ(Uploads().copies_size(), 2);
  EXPECT_EQ(Uploads().place(), "s3://runs/lab/" + job_);
}

TEST_F(CheckpointUploadsTest, TheOrderSaysWhoseCopiesMayBeThere) {
  std::string store;
  coordinator_.controller().Inspect([&](const State& state) { store = state.store().id(); });
  ASSERT_FALSE(store.empty());
  Store(10);
  ASSERT_EQ(Wanted(), 10);
  EXPECT_EQ(worker_.desired.tasks(0).store(), store);
  EXPECT_FALSE(worker_.desired.tasks(0).continues()) << "nothing of it is there";
  EXPECT_FALSE(worker_.desired.tasks(0).takes_over());
  End(v1::CHECKPOINT_TASK_STATE_DONE);
  Store(20);
  ASSERT_EQ(Wanted(), 20);
  EXPECT_TRUE(worker_.desired.tasks(0).continues());
  EXPECT_FALSE(worker_.desired.tasks(0).takes_over());
}

TEST_F(CheckpointUploadsTest, OnlyTheFirstUploadOfAnAdoptedJobTakesOverWhatIsThere) {
  v1::Orphan& orphan = *worker_.report.add_orphans();
  orphan.set_job("lost-7");
  orphan.set_attempt(1);
  orphan.set_spec_yaml(TestCoordinator::Spec("lost", 2));
  orphan.mutable_store()->set_id("0123456789abcdef0123456789abcdef");
  orphan.mutable_store()->set_epoch(1);
  const auto store = [&](int64_t step) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      v1::ShardReport& shard = *orphan.add_shards();
      shard.mutable_ref()->set_job("lost-7");
      shard.mutable_ref()->set_step(step);
      shard.mutable_ref()->set_attempt(1);
      shard.set_rank(rank);
      shard.set_world(2);
      shard.set_bytes(1000);
      shard.set_manifest_crc32c(7);
      *shard.mutable_store() = orphan.store();
    }
    Look();
  };
  worker_.report.set_all_shards(true);
  store(10);
  v1::AdoptJobRequest adopt;
  adopt.set_job("lost-7");
  ASSERT_EQ(coordinator_.Do<v1::AdoptJobResponse>(adopt).status(), absl::OkStatus());
  Look();
  ASSERT_EQ(Wanted(), 10);
  EXPECT_EQ(worker_.desired.tasks(0).destination(), "s3://runs/lab/lost-7");
  EXPECT_TRUE(worker_.desired.tasks(0).takes_over());
  End(v1::CHECKPOINT_TASK_STATE_DONE);
  store(20);
  Look();
  ASSERT_EQ(Wanted(), 20);
  EXPECT_TRUE(worker_.desired.tasks(0).continues());
  EXPECT_FALSE(worker_.desired.tasks(0).takes_over());
}

TEST_F(CheckpointUploadsTest, AnotherStoresCopiesMakeTheUploadFailWithItsName) {
  Store(10);
  Fail("s3://runs/lab/train-1/nibble-copies.json: the copies there are those of a job of store aa");
  EXPECT_EQ(Failing(), 1);
  EXPECT_EQ(Uploads().failures(), 1);
  EXPECT_THAT(Uploads().error(), HasSubstr("of a job of store aa"));
  EXPECT_EQ(coordinator_.Job(job_).state(), v1::JOB_STATE_RUNNING);
}

TEST_F(CheckpointUploadsTest, RetentionKeepsACheckpointWhileItIsUploadedAndNotWhileItWaits) {
  Store(10);
  for (const int64_t step : {20, 30, 40}) Store(step);
  EXPECT_THAT(Stored(), ElementsAre(40, 30, 10));  // keep_last: 2, and the one being uploaded
  Fail("PUT s3://runs: 503");
  Look();
  EXPECT_THAT(Stored(), ElementsAre(40, 30));
  // What waits for the next try is always the newest.
  for (const int64_t step : {50, 60}) Store(step);
  Look();
  EXPECT_THAT(Stored(), ElementsAre(60, 50));
  EXPECT_EQ(Wanted(), -1);
  Wait(kFirstUploadPauseMs);
  EXPECT_EQ(Wanted(), 60);
}

TEST_F(CheckpointUploadsTest, AFailureIsCountedAndTriedAgainLaterWithTheNewest) {
  Store(10);
  Fail("PUT s3://runs: 403 AccessDenied");
  EXPECT_EQ(Wanted(), -1);
  EXPECT_EQ(Failing(), 1);
  Store(20);
  EXPECT_EQ(Wanted(), -1) << "a newer checkpoint is no reason to try sooner";
  Wait(kFirstUploadPauseMs);
  EXPECT_EQ(Wanted(), 20);
  EXPECT_EQ(Failing(), 1) << "until it has succeeded";
  Fail("still");
  EXPECT_EQ(Wanted(), -1);
  Wait(kFirstUploadPauseMs);
  EXPECT_EQ(Wanted(), -1) << "the second pause is longer";
  EXPECT_EQ(Uploads().retry_unix_ms(), coordinator_.clock.NowUnixMs() + kFirstUploadPauseMs);
  Wait(kFirstUploadPauseMs);
  ASSERT_EQ(Wanted(), 20);
  End(v1::CHECKPOINT_TASK_STATE_DONE);
  EXPECT_EQ(Failing(), 0);
  // Training went on: the failure is in the job's events.
  EXPECT_EQ(coordinator_.Job(job_).state(), v1::JOB_STATE_RUNNING);
  v1::ListJobEventsRequest request;
  request.set_job(job_);
  std::string events;
  const auto listed = coordinator_.controller().Read(request);
  ASSERT_EQ(listed.status(), absl::OkStatus());
  for (const v1::JobEvent& event : listed->events()) events += event.text() + "\n";
  EXPECT_THAT(events, HasSubstr("upload failed: PUT s3://runs: 403 AccessDenied"));
}

TEST_F(CheckpointUploadsTest, AFailureOutlivesItsCheckpointAndTheCoordinatorsProcess) {
  Store(10);
  Fail("PUT s3://runs: 403 AccessDenied");
  for (const int64_t step : {20, 30, 40}) Store(step);
  Look();
  ASSERT_THAT(Stored(), ElementsAre(40, 30));
  EXPECT_EQ(Wanted(), -1) << "the removal of a checkpoint is no reason to try sooner";
  EXPECT_EQ(Failing(), 1);
  Restart();
  EXPECT_EQ(Wanted(), -1);
  EXPECT_EQ(Failing(), 1);
  EXPECT_EQ(Uploads().failures(), 1);
  EXPECT_EQ(Uploads().failed().step(), 10);
  EXPECT_EQ(Uploads().error(), "PUT s3://runs: 403 AccessDenied");
  Wait(kFirstUploadPauseMs / 2);
  Restart();
  EXPECT_EQ(Wanted(), -1);
  Wait(kFirstUploadPauseMs / 2);
  EXPECT_EQ(Wanted(), 40);
  Fail("still");
  EXPECT_EQ(Uploads().failures(), 2);
}

TEST_F(CheckpointUploadsTest, AWallClockThatIsSetBackDoesNotProlongThePause) {
  Store(10);
  Fail("PUT s3://runs: 503");
  coordinator_.clock.JumpWall(-3600'000);
  Wait(kFirstUploadPauseMs);
  EXPECT_EQ(Wanted(), 10);
}

TEST_F(CheckpointUploadsTest, AnUploadThatNoWorkerCanFinishFailsAndIsTriedWhenOneIsBack) {
  Store(10);
  ASSERT_EQ(Wanted(), 10);
  EXPECT_EQ(Uploads().open().step(), 10);
  coordinator_.clock.Advance(ControllerOptions().lease_ms + 1);
  coordinator_.Tick();
  coordinator_.Tick();
  EXPECT_FALSE(Uploads().has_open());
  EXPECT_EQ(Uploads().error(), "no present worker has the shard of rank 0");
  EXPECT_EQ(Failing(), 1);
  coordinator_.clock.Advance(2 * kFirstUploadPauseMs);
  coordinator_.Tick();
  EXPECT_FALSE(Uploads().has_open()) << "nobody has it yet";
  EXPECT_EQ(Failing(), 1);
  worker_.Reconnect();
  ASSERT_EQ(worker_.Report(), absl::OkStatus());
  Look();
  EXPECT_EQ(Wanted(), 10);
  End(v1::CHECKPOINT_TASK_STATE_DONE);
  EXPECT_EQ(Failing(), 0);
}

TEST_F(CheckpointUploadsTest, ACheckpointThatNoPresentWorkerHasFailsOnceAndIsTriedWhenItCanBe) {
  Store(10);
  Store(20);
  End(v1::CHECKPOINT_TASK_STATE_DONE);  // of step 10
  End(v1::CHECKPOINT_TASK_STATE_DONE);
  Store(30);
  worker_.desired.clear_tasks();
  coordinator_.clock.Advance(ControllerOptions().lease_ms + 1);
  for (int i = 0; i < 3; ++i) coordinator_.Tick();
  EXPECT_EQ(Uploads().failures(), 1);
  coordinator_.clock.Advance(100 * kMostUploadPauseMs);
  for (int i = 0; i < 3; ++i) coordinator_.Tick();
  EXPECT_EQ(Uploads().failures(), 1);
  EXPECT_EQ(Uploads().error(), "no present worker has the shard of rank 0");
  worker_.Reconnect();
  ASSERT_EQ(worker_.Report(), absl::OkStatus());
  Look();
  EXPECT_EQ(Wanted(), 30);
}

TEST_F(CheckpointUploadsTest, AnotherPlaceHasNeitherCopiesNorFailures) {
  Store(10);
  End(v1::CHECKPOINT_TASK_STATE_DONE);
  EXPECT_EQ(Find("s3://runs/lab/" + job_).need, UploadNeed::kNone);
  EXPECT_EQ(Find("s3://other/" + job_).need, UploadNeed::kWanted);
  Store(20);
  Fail("PUT s3://runs: 503");
  EXPECT_EQ(Find("s3://runs/lab/" + job_).wait_ms, kFirstUploadPauseMs);
  const Upload elsewhere = Find("s3://other/" + job_);
  EXPECT_EQ(elsewhere.wait_ms, 0);
  EXPECT_EQ(elsewhere.failures, 0);
}

TEST_F(CheckpointUploadsTest, AfterARestartAnOpenUploadIsNotRequestedTwice) {
  Store(10);
  ASSERT_EQ(Wanted(), 10);
  const int64_t task = worker_.desired.tasks(0).task();
  Restart();
  ASSERT_EQ(Wanted(), 10);
  EXPECT_EQ(worker_.desired.tasks_size(), 1);
  EXPECT_EQ(worker_.desired.tasks(0).task(), task);
}

}  // namespace
}  // namespace nibble
