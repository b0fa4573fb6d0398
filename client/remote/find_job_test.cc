#include "client/remote/find_job.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

v1::Job JobOf(const std::string& id, const std::string& name) {
  v1::Job job;
  job.set_id(id);
  job.set_name(name);
  job.set_state(v1::JOB_STATE_RUNNING);
  return job;
}

class FindJobTest : public testing::Test {
 protected:
  absl::StatusOr<std::string> Choose(const std::string& given) {
    const absl::StatusOr<v1::Job> job = ChooseJob(given, jobs_);
    if (!job.ok()) return job.status();
    return job->id();
  }

  const std::vector<v1::Job> jobs_ = {JobOf("train-12", "train"), JobOf("train-1", "train"),
                                      JobOf("tiny-3", "tiny"), JobOf("tiny-big-4", "tiny-big")};
};

TEST_F(FindJobTest, AnIdIsItselfAlsoWhereOthersBeginSo) {
  EXPECT_EQ(*Choose("train-1"), "train-1");
}

TEST_F(FindJobTest, ANameThatOneJobHasIsIt) { EXPECT_EQ(*Choose("tiny"), "tiny-3"); }

TEST_F(FindJobTest, ABeginningOfOneIdIsIt) { EXPECT_EQ(*Choose("tiny-b"), "tiny-big-4"); }

TEST_F(FindJobTest, WhatMayBeSeveralIsRefusedWithThem) {
  const absl::Status status = Choose("train").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("job: 'train' may be train-12 (running), train-1"));
}

TEST_F(FindJobTest, WhatIsNotThereIsToldWithWhatIsNear) {
  const absl::Status status = Choose("trian-1").status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(status.message(), HasSubstr("did you mean 'train-1"));
}

}  // namespace
}  // namespace nibble
