#include "worker/agent/rank_end.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace nibble {
namespace {

ProcessExit Code(TrainerExit exit, const std::string& log = "") {
  return {.exit_code = static_cast<int>(exit), .log_tail = log};
}

TEST(RankEndTest, EveryExitCodeSaysWhoseFaultItIs) {
  const auto cause = [](TrainerExit exit) { return EndOf(0, Code(exit), false).cause; };
  EXPECT_EQ(cause(TrainerExit::kError), v1::FAILURE_CAUSE_MACHINE);
  EXPECT_EQ(cause(TrainerExit::kUsage), v1::FAILURE_CAUSE_MACHINE);
  EXPECT_EQ(cause(TrainerExit::kSpec), v1::FAILURE_CAUSE_SPEC);
  EXPECT_EQ(cause(TrainerExit::kCheckpoint), v1::FAILURE_CAUSE_CHECKPOINT);
  EXPECT_EQ(cause(TrainerExit::kDisk), v1::FAILURE_CAUSE_DISK);
  EXPECT_EQ(cause(TrainerExit::kPeer), v1::FAILURE_CAUSE_PEER);
  EXPECT_EQ(cause(TrainerExit::kGuardPause), v1::FAILURE_CAUSE_GUARD_PAUSE);
  EXPECT_EQ(cause(TrainerExit::kGuardRollback), v1::FAILURE_CAUSE_GUARD_ROLLBACK);
  EXPECT_EQ(cause(TrainerExit::kGuardFail), v1::FAILURE_CAUSE_GUARD_FAIL);
  EXPECT_EQ(EndOf(0, {.exit_code = 57}, false).cause, v1::FAILURE_CAUSE_MACHINE);
  EXPECT_EQ(EndOf(0, {.signal = SIGKILL}, false).cause, v1::FAILURE_CAUSE_MACHINE);
}

TEST(RankEndTest, OneThatIsDoneOrStopsIsNoFailure) {
  EXPECT_EQ(EndOf(0, Code(TrainerExit::kDone), false).state, RankState::kSucceeded);
  EXPECT_EQ(EndOf(0, Code(TrainerExit::kStopped), false).state, RankState::kStopped);
  EXPECT_EQ(EndOf(0, {.signal = SIGTERM}, true).state, RankState::kStopped);
  EXPECT_EQ(EndOf(0, {.signal = SIGTERM}, false).state, RankState::kFailed);
}

TEST(RankEndTest, TheSpecsFaultIsSaidInTheTrainersOwnLastWords) {
  const std::string log =
      "step 1 loss 5\nnibble-trainer: goes on\nnibble-trainer: data.train: /x: no such file\n";
  EXPECT_EQ(EndOf(3, Code(TrainerExit::kSpec, log), false).detail, "data.train: /x: no such file");
  EXPECT_EQ(EndOf(3, Code(TrainerExit::kDisk, log), false).detail,
            "rank 3: data.train: /x: no such file");
  EXPECT_EQ(EndOf(3, Code(TrainerExit::kError, "bang\x01\n"), false).detail,
            "rank 3 ended with exit code 1; last words: bang?\n");
}

TEST(RankEndTest, AnErrorBeforeTheStartSaysWhoseFaultItIs) {
  EXPECT_EQ(CauseOf(absl::DataLossError("bits")), v1::FAILURE_CAUSE_CHECKPOINT);
  EXPECT_EQ(CauseOf(absl::ResourceExhaustedError("full")), v1::FAILURE_CAUSE_DISK);
  EXPECT_EQ(CauseOf(absl::UnavailableError("away")), v1::FAILURE_CAUSE_MACHINE);
  EXPECT_EQ(CauseOf(WithExit(absl::InvalidArgumentError("model"), TrainerExit::kSpec)),
            v1::FAILURE_CAUSE_SPEC);
}

}  // namespace
}  // namespace nibble
