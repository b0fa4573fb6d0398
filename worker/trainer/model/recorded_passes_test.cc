#include "worker/trainer/model/recorded_passes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
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
        twice_(*backend().memory().Allocate(sizeof(float))),
        hooks_(*this),
        passes_(backend().compute(), hooks_) {
    Write(x_, 1);
    Write(y_, 0);
    Write(twice_, 2);
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
    return passes_.Run({.micro = micro}, /*exchanges=*/false, [this] { return Add(); });
  }
  // With an exchange before, in the middle and at the end: x + 2x is added.
  absl::Status RunWithExchanges() {
    return passes_.Run({}, /*exchanges=*/true, [this]() -> absl::Status {
      NIBBLE_RETURN_IF_ERROR(passes_.BeforeForward(-1));
      NIBBLE_RETURN_IF_ERROR(Add());
      NIBBLE_RETURN_IF_ERROR(passes_.BeforeBackward(2));
      NIBBLE_RETURN_IF_ERROR(Add());
      NIBBLE_RETURN_IF_ERROR(Add());
      return passes_.AfterBackward(0);
    });
  }

  // Notes the calls; before a backward pass, doubles x in the other queue, for which the
  // computation waits.
  struct Hooks : PassHooks {
    explicit Hooks(RecordedPassesTest& test)
        : test(test), before(*test.backend().NewEvent()), after(*test.backend().NewEvent()) {}
    absl::Status BeforeForward(int64_t part) override { return Note("forward", part); }
    absl::Status BeforeBackward(int64_t part) override {
      NIBBLE_RETURN_IF_ERROR(Note("backward", part));
      Queue& compute = test.backend().compute();
      Queue& transfers = test.backend().transfers();
      NIBBLE_RETURN_IF_ERROR(compute.Record(*before));
      NIBBLE_RETURN_IF_ERROR(transfers.WaitFor(*before));
      NIBBLE_RETURN_IF_ERROR(transfers.Copy(
          {.to = test.x_.data(), .from = test.twice_.data(), .line_bytes = sizeof(float)}));
      NIBBLE_RETURN_IF_ERROR(transfers.Record(*after));
      return compute.WaitFor(*after);
    }
    absl::Status AfterBackward(int64_t part) override { return Note("after", part); }
    absl::Status Note(const char* name, int64_t part) {
      calls.push_back(absl::StrCat(name, " ", part));
      return fails ? absl::UnavailableError("peer lost") : absl::OkStatus();
    }

    RecordedPassesTest& test;
    const std::unique_ptr<Event> before, after;
    std::vector<std::string> calls;
    bool fails = false;
  };

  const std::unique_ptr<LateDevice> device_;
  const Buffer x_, y_, twice_;
  Hooks hooks_;
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
  const auto fail = [] { return absl::InvalidArgumentError("bad"); };
  EXPECT_EQ(passes_.Run({}, /*exchanges=*/false, fail).message(), "bad");
  EXPECT_EQ(Sum(), 1);
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Sum(), 2);
}

TEST_F(RecordedPassesTest, ExchangesHappenInTheirPlacesOfAPassThatIsRunFromItsPieces) {
  const std::vector<std::string> one = {"forward -1", "backward 2", "after 0"};
  for (int i = 0; i < 5; ++i) {
    hooks_.calls.clear();
    Write(x_, 1);
    ASSERT_TRUE(RunWithExchanges().ok());
    EXPECT_EQ(hooks_.calls, one);
    EXPECT_EQ(Sum(), 5 * (i + 1));
  }
  EXPECT_EQ(calls_, 2 * 3);
  EXPECT_EQ(passes_.replays(), 4);
}

TEST_F(RecordedPassesTest, MemoryThatIsFreedEndsAllPiecesBeforeTheFirstExchange) {
  Buffer other = *backend().memory().Allocate(64);
  for (int i = 0; i < 3; ++i) {
    Write(x_, 1);
    ASSERT_TRUE(RunWithExchanges().ok());
  }
  other = Buffer();
  hooks_.calls.clear();
  Write(x_, 1);
  ASSERT_TRUE(RunWithExchanges().ok());
  EXPECT_EQ(hooks_.calls.size(), 3);
  EXPECT_EQ(calls_, 3 * 3);
  EXPECT_EQ(Sum(), 20);
}

TEST_F(RecordedPassesTest, AnErrorOfAnExchangeEndsThePassWhetherItIsRecordedOrRun) {
  for (int run = 0; run < 3; ++run) {
    hooks_.fails = true;
    EXPECT_TRUE(absl::IsUnavailable(RunWithExchanges()));
    hooks_.fails = false;
    ASSERT_TRUE(RunWithExchanges().ok());
  }
  EXPECT_TRUE(backend().Synchronize().ok());
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
