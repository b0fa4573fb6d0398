#include "client/remote/watch_state.h"

#include "gtest/gtest.h"

namespace nibble {
namespace {

v1::StepSample SampleOf(int64_t step, double loss, double seconds = 0.5) {
  v1::StepSample sample;
  sample.set_step(step);
  sample.set_loss(loss);
  sample.set_step_seconds(seconds);
  sample.set_updated(true);
  return sample;
}

v1::JobEvent EventOf(int64_t number, v1::JobEventKind kind, const std::string& text, int64_t step,
                     int64_t attempt = 1) {
  v1::JobEvent event;
  event.set_number(number);
  event.set_kind(kind);
  event.set_text(text);
  event.set_step(step);
  event.set_attempt(attempt);
  return event;
}

TEST(WatchStateTest, RepeatedStepsReplaceEarlierSamples) {
  WatchState state;
  for (int i = 0; i < 100; ++i) state.AddSample(SampleOf(i, 5));
  state.AddSample(SampleOf(60, 4));
  EXPECT_EQ(state.recent().back().loss(), 4);
  EXPECT_EQ(state.losses().buckets().size(), 61u);
  EXPECT_EQ(state.losses().buckets().back().mean(), 4);
}

TEST(WatchStateTest, ASampleThatComesTwiceIsNoReturnToACheckpoint) {
  WatchState state;
  for (int i = 0; i < 10; ++i) state.AddSample(SampleOf(i, 5));
  state.AddSample(SampleOf(5, 5));
  EXPECT_EQ(state.recent().back().step(), 9);
  state.AddSample(SampleOf(5, 5, 0.75));  // made again
  EXPECT_EQ(state.recent().back().step(), 5);
}

TEST(WatchStateTest, TheStateIsBoundedOverAMillionSteps) {
  WatchState state;
  for (int i = 0; i < 1'000'000; ++i) state.AddSample(SampleOf(i, 5));
  for (int i = 1; i <= 5000; ++i) {
    state.AddEvent(EventOf(i, v1::JOB_EVENT_KIND_CHECKPOINT, "committed: 1 shard", i));
  }
  EXPECT_LE(state.recent().size(), WatchState::kMostRecent);
  EXPECT_LE(state.losses().buckets().size(), LossHistory::kMostBuckets);
  EXPECT_LE(state.events().size(), WatchState::kMostEvents);
  EXPECT_LE(state.marks().size(), WatchState::kMostMarks);
  EXPECT_EQ(state.losses().buckets().front().first_step, 0);
  EXPECT_EQ(state.losses().buckets().back().last_step, 999'999);
}

TEST(WatchStateTest, CommittedCheckpointsAndRestartsAreMarked) {
  WatchState state;
  state.AddEvent(EventOf(1, v1::JOB_EVENT_KIND_ATTEMPT, "attempt 1 launched", 0));
  state.AddEvent(EventOf(2, v1::JOB_EVENT_KIND_CHECKPOINT, "requested", 40));
  state.AddEvent(EventOf(3, v1::JOB_EVENT_KIND_CHECKPOINT, "committed: 2 shards", 50));
  state.AddEvent(EventOf(4, v1::JOB_EVENT_KIND_ATTEMPT, "attempt 1 ended", -1));
  state.AddEvent(EventOf(5, v1::JOB_EVENT_KIND_ATTEMPT, "attempt 2 launched", 50, 2));
  EXPECT_EQ(state.marks(), (std::deque<StepMark>{{50, 'c'}, {50, 'R'}}));
}

TEST(WatchStateTest, TheDifferenceFromTheReferenceIsThatOfTheLastCommonSteps) {
  WatchState state;
  EXPECT_FALSE(state.relative_difference().has_value());
  state.SetReference("base-1");
  for (int i = 0; i < 1000; ++i) state.AddReferenceSample(SampleOf(i, 4));
  for (int i = 0; i < 500; ++i) state.AddSample(SampleOf(i, i < 480 ? 8 : 4.04));
  ASSERT_TRUE(state.relative_difference().has_value());
  EXPECT_NEAR(state.relative_difference()->relative, 0.01, 1e-9);
  EXPECT_EQ(state.relative_difference()->step, 499);
  EXPECT_FALSE(state.relative_difference()->reference_ended);
}

TEST(WatchStateTest, JobsThatSampleDifferentStepsAreComparedOverALongerSpan) {
  WatchState state;
  state.SetReference("base-1");
  for (int i = 0; i < 60; ++i) state.AddReferenceSample(SampleOf(i, 4));
  for (int i = 0; i < 200; i += 10) state.AddSample(SampleOf(i, 5));
  ASSERT_TRUE(state.relative_difference().has_value());
  EXPECT_EQ(state.relative_difference()->relative, 0.25);
  EXPECT_EQ(state.relative_difference()->step, 59);
  EXPECT_TRUE(state.relative_difference()->reference_ended);
}

TEST(WatchStateTest, APartOfAStepIsTheMeanOfTheLastSamples) {
  WatchState state;
  EXPECT_FALSE(state.mean_step().has_value());
  for (int i = 0; i < 40; ++i) {
    v1::StepSample sample = SampleOf(i, 5, 1 + i % 2);
    sample.set_forward_seconds(i % 2);
    state.AddSample(sample);
  }
  EXPECT_EQ(state.mean_step()->step_seconds(), 1.5);
  EXPECT_EQ(state.mean_step()->forward_seconds(), 0.5);
}

}  // namespace
}  // namespace nibble
