#include "worker/trainer/loop/checkpoint_taker.h"

#include "gtest/gtest.h"

namespace nibble {
namespace {

using enum CheckpointDecision;

TEST(DecideCheckpointTest, EveryNStepsFromTheFirstOn) {
  EXPECT_EQ(DecideCheckpoint({.next_step = 0, .every = 5}), kNone);
  EXPECT_EQ(DecideCheckpoint({.next_step = 4, .every = 5}), kNone);
  EXPECT_EQ(DecideCheckpoint({.next_step = 5, .every = 5}), kNow);
  EXPECT_EQ(DecideCheckpoint({.next_step = 5, .every = 0}), kNone);
}

TEST(DecideCheckpointTest, TheSameStepIsTakenOnce) {
  EXPECT_EQ(DecideCheckpoint({.next_step = 5, .taken_step = 5, .every = 5}), kNone);
  EXPECT_EQ(DecideCheckpoint({.next_step = 5, .taken_step = 5, .due = true}), kLater);
}

TEST(DecideCheckpointTest, ARequestMakesOneDueAtAnyStepButTheFirst) {
  EXPECT_EQ(DecideCheckpoint({.next_step = 3, .due = true}), kNow);
  EXPECT_EQ(DecideCheckpoint({.next_step = 0, .due = true}), kLater);
}

TEST(DecideCheckpointTest, WhileARankIsStoringAndAfterASkippedStepItWaits) {
  EXPECT_EQ(DecideCheckpoint({.next_step = 5, .every = 5, .storing = true}), kLater);
  EXPECT_EQ(DecideCheckpoint({.next_step = 5, .every = 5, .skipped_in_a_row = 1}), kLater);
  EXPECT_EQ(DecideCheckpoint({.next_step = 6, .every = 5, .due = true}), kNow);
}

}  // namespace
}  // namespace nibble
