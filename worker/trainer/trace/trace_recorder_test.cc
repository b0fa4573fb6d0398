#include "worker/trainer/trace/trace_recorder.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/late/late_device.h"

namespace nibble {
namespace {

constexpr int64_t kBytes = 64;

// A device whose queues run late, and its recorder. The clock ticks with every look.
class TraceRecorderTest : public testing::Test {
 protected:
  void SetUp() override {
    auto late = LateDevice::Create({.clock = [this] { return clock_ += 0.001; }});
    ASSERT_TRUE(late.ok()) << late.status();
    late_ = *std::move(late);
    recorder_ =
        std::make_unique<TraceRecorder>(late_->backend(), [this] { return clock_ += 0.001; });
    const Device inner = {late_->backend(), late_->gemm(), late_->ops()};
    traced_ = std::make_unique<TracedDevice>(inner, *recorder_);
    auto device = late_->backend().memory().Allocate(kBytes);
    auto pinned = late_->backend().pinned().Allocate(kBytes);
    ASSERT_TRUE(device.ok() && pinned.ok());
    device_ = *std::move(device);
    pinned_ = *std::move(pinned);
  }
  // An operation, a copy in each queue, and a collective.
  void Work() {
    Backend& backend = traced_->device().backend;
    EXPECT_TRUE(traced_->device().ops.elementwise().Zero(device_.data(), kBytes).ok());
    EXPECT_TRUE(backend.transfers().CopyIn(device_.data(), pinned_.data(), kBytes).ok());
    EXPECT_TRUE(backend.compute().CopyOut(pinned_.data(), device_.data(), kBytes).ok());
    const std::unique_ptr<Collective> ranks = CreateLocal();
    ranks->set_tracer(recorder_.get());
    EXPECT_TRUE(ranks->AllGather(device_.data(), device_.data(), kBytes).ok());
    EXPECT_TRUE(ranks->Barrier().ok());
  }
  std::map<std::string, TraceSpan> Spans() {
    auto spans = recorder_->End();
    EXPECT_TRUE(spans.ok()) << spans.status();
    std::map<std::string, TraceSpan> by_name;
    for (const TraceSpan& span : *spans) EXPECT_TRUE(by_name.emplace(span.name, span).second);
    return by_name;
  }

  double clock_ = 100;
  std::unique_ptr<LateDevice> late_;
  std::unique_ptr<TraceRecorder> recorder_;
  std::unique_ptr<TracedDevice> traced_;
  Buffer device_, pinned_;
};

TEST_F(TraceRecorderTest, OperationsCopiesAndCollectivesAreSpansOfTheirTracks) {
  ASSERT_TRUE(recorder_->Begin().ok());
  Work();
  recorder_->AddHost("read", 1, 3);
  const std::map<std::string, TraceSpan> spans = Spans();
  ASSERT_EQ(spans.size(), 6u);
  EXPECT_EQ(spans.at("zero").track, TraceTrack::kCompute);
  EXPECT_EQ(spans.at("zero").bytes, kBytes);
  EXPECT_EQ(spans.at("copy in").track, TraceTrack::kCopies);
  EXPECT_EQ(spans.at("copy out").track, TraceTrack::kCopies);
  EXPECT_EQ(spans.at("AllGather").track, TraceTrack::kCommunication);
  EXPECT_EQ(spans.at("Barrier").track, TraceTrack::kHost);
  EXPECT_EQ(spans.at("read").seconds, 2);
  for (const auto& [name, span] : spans) {
    if (name == "read") continue;
    EXPECT_GE(span.begin, recorder_->origin_seconds() - 0.01) << name;
    EXPECT_GT(span.seconds, 0) << name;
    EXPECT_LE(span.begin + span.seconds, clock_ + 0.01) << name;
  }
  // Within one queue, in the order of the calls.
  EXPECT_LE(spans.at("zero").begin + spans.at("zero").seconds, spans.at("copy out").begin + 0.01);
}

TEST_F(TraceRecorderTest, NothingIsRecordedBeforeAndAfterATrace) {
  Work();
  EXPECT_TRUE(recorder_->direct());
  ASSERT_TRUE(recorder_->Begin().ok());
  EXPECT_FALSE(recorder_->direct());
  EXPECT_EQ(Spans().size(), 0u);
  Work();
  recorder_->AddHost("read", 1, 3);
  ASSERT_TRUE(recorder_->Begin().ok());
  EXPECT_EQ(Spans().size(), 0u);
}

TEST_F(TraceRecorderTest, ATraceKeepsItsFirstSpansAndCountsTheRest) {
  ASSERT_TRUE(recorder_->Begin().ok());
  for (size_t i = 0; i < TraceRecorder::kMostSpans; ++i) recorder_->AddHost("x", 1, 2);
  Work();
  const auto spans = recorder_->End();
  ASSERT_TRUE(spans.ok());
  EXPECT_EQ(spans->size(), TraceRecorder::kMostSpans);
  EXPECT_EQ(recorder_->dropped(), 5);
}

}  // namespace
}  // namespace nibble
