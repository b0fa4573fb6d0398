#include "worker/trainer/model/recorded_passes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/late/late_device.h"

namespace nibble {
namespace {

// A pass that adds x to y on a device that runs late.
class RecordedPassesTest : public testing::Test {
 protected:
  RecordedPassesTest()
      : device_(*LateDevice::Create({.memory_bytes = size_t{1} << 24, .seed = 3})),
        x_(*backend().memory().Allocate(sizeof(float))),
        y_(*backend().memory().Allocate(sizeof(float))),
        passes_(backend().compute()) {
    Write(x_, 1);
    Write(y_, 0);
  }
  LateBackend& backend() { return device_->backend(); }
  void Write(const Buffer& to, float value) {
    ASSERT_TRUE(backend().memory().CopyIn(to.data(), &value, sizeof value).ok());
  }
  float Sum() {
    float value = 0;
    EXPECT_TRUE(backend().memory().CopyOut(&value, y_.data(), sizeof value).ok());
    return value;
  }
  absl::Status Add() {
    ++calls_;
    return device_->ops().elementwise().Run(
        Accumulate{.from = ConstMatrix::Of(x_.data<float>(), 1, 1),
                   .to = MutableMatrix::Of(y_.data<float>(), 1, 1)});
  }
  absl::Status Run(int64_t micro = 0) {
    return passes_.Run({.micro = micro}, [this] { return Add(); });
  }

  const std::unique_ptr<LateDevice> device_;
  const Buffer x_, y_;
  RecordedPasses passes_;
  int calls_ = 0;
};

TEST_F(RecordedPassesTest, APassIsCalledOnceRecordedTheSecondTimeAndThenOnlyRun) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Run().ok());
  EXPECT_EQ(calls_, 2);
  EXPECT_EQ(passes_.replays(), 4);
  EXPECT_EQ(Sum(), 5);
  // It reads the memory when it runs.
  Write(x_, 10);
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Sum(), 15);
}

TEST_F(RecordedPassesTest, AnotherMicroBatchIsAnotherPass) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Run(0).ok());
    ASSERT_TRUE(Run(1).ok());
  }
  EXPECT_EQ(calls_, 4);
  EXPECT_EQ(Sum(), 6);
}

TEST_F(RecordedPassesTest, MemoryThatIsFreedEndsARecording) {
  Buffer other = *backend().memory().Allocate(64);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Run().ok());
  other = Buffer();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Run().ok());
  EXPECT_EQ(calls_, 4);  // called, and recorded anew
  EXPECT_EQ(Sum(), 6);
}

TEST_F(RecordedPassesTest, AfterAChangeOfTheRecipePassesAreRecordedAnew) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Run().ok());
  passes_.Clear();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Run().ok());
  EXPECT_EQ(calls_, 4);
  EXPECT_EQ(Sum(), 6);
}

TEST_F(RecordedPassesTest, AnErrorOfAPassEndsItsRecordingAndTheQueueGoesOn) {
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(passes_.Run({}, [] { return absl::InvalidArgumentError("bad"); }).message(), "bad");
  EXPECT_EQ(Sum(), 1);
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Sum(), 2);
}

TEST_F(RecordedPassesTest, MoreMicroBatchesThanAreRecordedRunAllTheSame) {
  const int64_t passes = RecordedPasses::kMostRecordings + 3;
  for (int i = 0; i < 2; ++i) {
    for (int64_t micro = 0; micro < passes; ++micro) ASSERT_TRUE(Run(micro).ok());
  }
  EXPECT_EQ(passes_.replays(), RecordedPasses::kMostRecordings);
  EXPECT_EQ(Sum(), static_cast<float>(2 * passes));
}

}  // namespace
}  // namespace nibble
