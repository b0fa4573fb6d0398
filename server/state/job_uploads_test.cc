// What is remembered of uploads, and the growing pauses between tries.
#include "server/state/job_uploads.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace nibble {
namespace {

v1::CheckpointRef RefAt(int64_t step) {
  v1::CheckpointRef ref;
  ref.set_job("train-1");
  ref.set_step(step);
  ref.set_attempt(1);
  return ref;
}

class JobUploadsTest : public testing::Test {
 protected:
  void Record(int64_t step, v1::CheckpointTaskState state, int64_t ended = 0,
              const std::string& place = "s3://runs/lab/train-1") {
    v1::CheckpointTask task;
    task.set_kind(v1::CHECKPOINT_TASK_KIND_UPLOAD);
    task.set_destination(place);
    task.set_state(state);
    task.set_keep(2);
    task.set_ended_unix_ms(ended);
    if (state == v1::CHECKPOINT_TASK_STATE_FAILED) task.set_detail("PUT: 403");
    RecordUpload(RefAt(step), task, uploads_);
  }
  std::vector<int64_t> Copies() const {
    std::vector<int64_t> steps;
    for (const v1::CheckpointRef& copy : uploads_.copies()) steps.push_back(copy.step());
    return steps;
  }
  v1::JobUploads uploads_;
};

TEST_F(JobUploadsTest, PausesDoubleFromAMinuteToSixteen) {
  std::vector<int64_t> minutes;
  for (int failures = 0; failures <= 7; ++failures) {
    minutes.push_back(UploadPauseMs(failures) / 60'000);
  }
  EXPECT_EQ(minutes, (std::vector<int64_t>{0, 1, 2, 4, 8, 16, 16, 16}));
  EXPECT_EQ(UploadPauseMs(INT32_MAX), kMostUploadPauseMs);
}

TEST_F(JobUploadsTest, FailuresAddUpUntilASuccess) {
  Record(10, v1::CHECKPOINT_TASK_STATE_REQUESTED);
  EXPECT_EQ(uploads_.open().step(), 10);
  Record(10, v1::CHECKPOINT_TASK_STATE_FAILED, 1000);
  EXPECT_FALSE(uploads_.has_open());
  Record(20, v1::CHECKPOINT_TASK_STATE_REQUESTED);
  EXPECT_EQ(uploads_.failures(), 1) << "until it has succeeded";
  Record(20, v1::CHECKPOINT_TASK_STATE_FAILED, 5000);
  EXPECT_EQ(uploads_.failures(), 2);
  EXPECT_EQ(uploads_.failed().step(), 20);
  EXPECT_EQ(uploads_.error(), "PUT: 403");
  Record(30, v1::CHECKPOINT_TASK_STATE_REQUESTED);
  Record(30, v1::CHECKPOINT_TASK_STATE_DONE, 9000);
  EXPECT_EQ(uploads_.failures(), 0);
  EXPECT_EQ(uploads_.error(), "");
  EXPECT_FALSE(uploads_.has_failed());
  EXPECT_EQ(uploads_.uploaded_unix_ms(), 9000);
}

TEST_F(JobUploadsTest, TheWaitEndsWithThePauseAndWhenTheWallClockIsSetBack) {
  EXPECT_EQ(UploadWaitMs(uploads_, 1000), 0);
  Record(10, v1::CHECKPOINT_TASK_STATE_FAILED, 1000);
  EXPECT_EQ(UploadWaitMs(uploads_, 1000), 60'000);
  EXPECT_EQ(UploadWaitMs(uploads_, 41'000), 20'000);
  EXPECT_EQ(UploadWaitMs(uploads_, 61'000), 0);
  EXPECT_EQ(UploadWaitMs(uploads_, 900'000), 0);
  EXPECT_EQ(UploadWaitMs(uploads_, 999), 0);
}

TEST_F(JobUploadsTest, TheNewestCopiesAreKnownInTheOrderOfTheirUploads) {
  for (const int64_t step : {10, 20, 30}) Record(step, v1::CHECKPOINT_TASK_STATE_DONE, step);
  EXPECT_EQ(Copies(), (std::vector<int64_t>{20, 30}));
  // After a rollback, the checkpoint that is the newest again.
  Record(20, v1::CHECKPOINT_TASK_STATE_DONE, 40);
  EXPECT_EQ(Copies(), (std::vector<int64_t>{30, 20}));
}

TEST_F(JobUploadsTest, AnotherPlaceBeginsAnew) {
  Record(10, v1::CHECKPOINT_TASK_STATE_DONE, 10);
  Record(20, v1::CHECKPOINT_TASK_STATE_FAILED, 20);
  Record(20, v1::CHECKPOINT_TASK_STATE_REQUESTED, 0, "s3://other/lab/train-1");
  EXPECT_EQ(uploads_.place(), "s3://other/lab/train-1");
  EXPECT_EQ(uploads_.failures(), 0);
  EXPECT_TRUE(Copies().empty());
  EXPECT_EQ(uploads_.open().step(), 20);
}

}  // namespace
}  // namespace nibble
