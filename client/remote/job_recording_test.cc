#include "client/remote/job_recording.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RunRecord RecordOf(const std::vector<int64_t>& steps) {
  RunRecord record;
  for (const int64_t step : steps) record.steps[step].loss = 1;
  return record;
}

TEST(MissingStepsTest, AreTheLoggedOnesThatTheRecordLacksGapByGap) {
  // Logged: 0, 10, 20, 30 and the last step, 36.
  EXPECT_THAT(MissingSteps(RecordOf({0, 10, 20, 30, 36}), 0, 37, 10, 36), IsEmpty());
  EXPECT_THAT(MissingSteps(RecordOf({10, 36}), 0, 37, 10, 36),
              ElementsAre(StepGap{0, 0, 1}, StepGap{20, 30, 2}));
  EXPECT_THAT(MissingSteps(RecordOf({0, 10}), 0, 37, 10, 36), ElementsAre(StepGap{20, 36, 3}));
  // Of a fork at step 15, and before the end.
  EXPECT_THAT(MissingSteps(RecordOf({}), 15, 30, 10, 36), ElementsAre(StepGap{20, 20, 1}));
  EXPECT_THAT(MissingSteps(RecordOf({}), 31, 36, 10, 36), IsEmpty());
}

TEST(LossSamplesTest, HaveStepTokensAndLoss) {
  RunRecord record = RecordOf({3});
  record.steps[3].tokens = 256;
  const std::vector<v1::StepSample> samples = LossSamples(record);
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].step(), 3);
  EXPECT_EQ(samples[0].tokens(), 256);
  EXPECT_EQ(samples[0].loss(), 1);
}

}  // namespace
}  // namespace nibble
