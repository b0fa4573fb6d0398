#include "worker/agent/gang_rules.h"

#include <signal.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

WantedGang Wanted(const std::string& job, int64_t attempt, std::vector<int32_t> slots = {0, 1}) {
  return {.job = job, .attempt = attempt, .slots = std::move(slots)};
}

PresentGang Present(const std::string& job, int64_t attempt,
                    std::vector<RankState> states = {RankState::kRunning, RankState::kRunning},
                    std::vector<int32_t> slots = {0, 1}) {
  PresentGang gang = {.job = job, .attempt = attempt, .slots = std::move(slots)};
  gang.sent = GangOrder();
  for (size_t i = 0; i < states.size(); ++i) {
    gang.ranks.push_back({.rank = static_cast<int32_t>(i), .state = states[i]});
  }
  return gang;
}

std::vector<std::string> Do(const std::vector<WantedGang>& wanted,
                            const std::vector<PresentGang>& present, int64_t now_ms = 1000) {
  std::vector<std::string> words;
  for (const AgentAction& action : Reconcile(&wanted, present, now_ms)) {
    const char* const names[] = {"start", "send", "dump", "kill", "close"};
    words.push_back(absl::StrCat(names[static_cast<int>(action.kind)], " ", action.job, "/",
                                 action.attempt, action.rank < 0 ? "" : " ",
                                 action.rank < 0 ? "" : absl::StrCat(action.rank)));
  }
  return words;
}

constexpr RankState kRunning = RankState::kRunning;
constexpr RankState kFailed = RankState::kFailed;
constexpr RankState kStopped = RankState::kStopped;
constexpr RankState kSucceeded = RankState::kSucceeded;

TEST(ReconcileTest, WithoutADesiredStateNothingChanges) {
  const std::vector<PresentGang> present = {Present("a", 1), Present("b", 1, {kFailed, kRunning})};
  EXPECT_THAT(Reconcile(nullptr, present, 1000), IsEmpty());
}

TEST(ReconcileTest, ADesiredGangIsStarted) {
  EXPECT_THAT(Do({Wanted("a", 1)}, {}), ElementsAre("start a/1"));
}

TEST(ReconcileTest, ADesiredGangThatRunsIsLeftAlone) {
  EXPECT_THAT(Do({Wanted("a", 1)}, {Present("a", 1)}), IsEmpty());
}

TEST(ReconcileTest, AnAttemptNeverStartsASecondTime) {
  EXPECT_THAT(Do({Wanted("a", 1)}, {Present("a", 1, {kFailed, kFailed})}), IsEmpty());
  EXPECT_THAT(Do({Wanted("a", 1)}, {Present("a", 1, {kSucceeded, kSucceeded})}), IsEmpty());
}

TEST(ReconcileTest, AGangThatIsNotDesiredIsKilledAndThenClosed) {
  EXPECT_THAT(Do({}, {Present("a", 1, {kRunning, kSucceeded})}), ElementsAre("kill a/1 0"));
  EXPECT_THAT(Do({}, {Present("a", 1, {kFailed, kSucceeded})}), ElementsAre("close a/1"));
}

TEST(ReconcileTest, AKilledRankIsNotKilledAgain) {
  PresentGang gang = Present("a", 1);
  gang.ranks[0].killed = true;
  EXPECT_THAT(Do({}, {gang}), ElementsAre("kill a/1 1"));
}

TEST(ReconcileTest, ANewAttemptWaitsUntilTheOldOneIsClosed) {
  const std::vector<WantedGang> wanted = {Wanted("a", 2, {4, 5})};
  EXPECT_THAT(Do(wanted, {Present("a", 1)}), ElementsAre("kill a/1 0", "kill a/1 1"));
  PresentGang old = Present("a", 1, {kFailed, kFailed});
  EXPECT_THAT(Do(wanted, {old}), ElementsAre("close a/1"));
  old.closing = true;
  EXPECT_THAT(Do(wanted, {old}), IsEmpty());
  EXPECT_THAT(Do(wanted, {}), ElementsAre("start a/2"));
  // A gang that closes leaves its slots to other jobs.
  EXPECT_THAT(Do({Wanted("b", 1)}, {old}), ElementsAre("start b/1"));
}

TEST(ReconcileTest, AGangWaitsForItsSlots) {
  const std::vector<WantedGang> wanted = {Wanted("b", 1, {1, 2})};
  EXPECT_THAT(Do(wanted, {Present("a", 1)}), ElementsAre("kill a/1 0", "kill a/1 1"));
  EXPECT_THAT(Do({Wanted("b", 1, {2, 3}), Wanted("a", 1)}, {Present("a", 1)}),
              ElementsAre("start b/1"));
}

TEST(ReconcileTest, AnOrderForAnOldAttemptIsIgnored) {
  EXPECT_THAT(Do({Wanted("a", 1)}, {Present("a", 2, {kFailed, kFailed})}),
              ElementsAre("close a/2"));
  EXPECT_THAT(Do({Wanted("a", 1), Wanted("a", 2)}, {}), ElementsAre("start a/2"));
}

TEST(ReconcileTest, AFailedRankEndsTheOthers) {
  EXPECT_THAT(Do({Wanted("a", 1)}, {Present("a", 1, {kRunning, kFailed})}),
              ElementsAre("kill a/1 0"));
}

TEST(ReconcileTest, OfASparedGangOnlyRanksThatHangAreKilled) {
  PresentGang gang = Present("a", 1, {kFailed, kRunning});
  gang.spared = true;
  EXPECT_THAT(Do({Wanted("a", 1)}, {gang}), IsEmpty());
  EXPECT_THAT(Do({}, {gang}), IsEmpty());
  EXPECT_THAT(Do({Wanted("a", 2)}, {gang}), IsEmpty());
  gang.ranks[1].state = kFailed;  // stands by
  EXPECT_THAT(Do({Wanted("a", 2)}, {gang}), ElementsAre("close a/1"));
  gang = Present("a", 1, {kFailed, kRunning, kRunning});
  gang.spared = true;
  gang.ranks[1].hangs = true;
  // Also one that is no longer wanted writes its stacks.
  EXPECT_THAT(Do({Wanted("a", 1)}, {gang}), ElementsAre("dump a/1 1"));
  EXPECT_THAT(Do({}, {gang}), ElementsAre("dump a/1 1"));
  gang.ranks[1].dumped = true;
  EXPECT_THAT(Do({Wanted("a", 1)}, {gang}), ElementsAre("kill a/1 1"));
  EXPECT_THAT(Do({}, {gang}), ElementsAre("kill a/1 1"));
  gang.ranks[1].killed = true;
  EXPECT_THAT(Do({Wanted("a", 1)}, {gang}), IsEmpty());
  gang.spared = false;
  EXPECT_THAT(Do({Wanted("a", 1)}, {gang}), ElementsAre("kill a/1 2"));
}

TEST(ReconcileTest, ARankThatHasSucceededLetsTheOthersFinish) {
  EXPECT_THAT(Do({Wanted("a", 1)}, {Present("a", 1, {kRunning, kSucceeded})}), IsEmpty());
}

TEST(ReconcileTest, ARankThatHangsWritesItsStacksBeforeItsGangIsKilled) {
  PresentGang gang = Present("a", 1);
  gang.ranks[1].hangs = true;
  EXPECT_THAT(Do({Wanted("a", 1)}, {gang}), ElementsAre("dump a/1 1"));
  EXPECT_EQ(StateOfGang(gang), kRunning);
  gang.ranks[1].dumped = true;
  EXPECT_THAT(Do({Wanted("a", 1)}, {gang}), ElementsAre("kill a/1 0", "kill a/1 1"));
  EXPECT_EQ(StateOfGang(gang), kFailed);
}

TEST(ReconcileTest, AChangedOrderIsSent) {
  WantedGang wanted = Wanted("a", 1);
  wanted.order.checkpoint_request = 2;
  EXPECT_THAT(Do({wanted}, {Present("a", 1)}), ElementsAre("send a/1"));
  PresentGang gang = Present("a", 1);
  gang.sent = wanted.order;
  EXPECT_THAT(Do({wanted}, {gang}), IsEmpty());
}

TEST(ReconcileTest, AGangThatDoesNotStopInTimeIsKilled) {
  WantedGang wanted = Wanted("a", 1);
  wanted.order.command = v1::GANG_COMMAND_STOP;
  wanted.stop_by_ms = 5000;
  PresentGang gang = Present("a", 1, {kRunning, kStopped});
  EXPECT_THAT(Do({wanted}, {gang}, 5000), ElementsAre("send a/1"));
  gang.sent = wanted.order;
  EXPECT_THAT(Do({wanted}, {gang}, 5000), IsEmpty());
  EXPECT_THAT(Do({wanted}, {gang}, 5001), ElementsAre("kill a/1 0"));
}

TEST(ReconcileTest, AGangHasTheStateOfItsLeastAdvancedRank) {
  EXPECT_EQ(StateOfGang(Present("a", 1, {kSucceeded, kRunning})), kRunning);
  EXPECT_EQ(StateOfGang(Present("a", 1, {kSucceeded, kStopped})), kStopped);
  EXPECT_EQ(StateOfGang(Present("a", 1, {RankState::kPaused, kSucceeded})), RankState::kPaused);
  EXPECT_EQ(StateOfGang(Present("a", 1, {kRunning, kFailed})), kFailed);
  EXPECT_EQ(StateOfGang(Present("a", 1, {kSucceeded, kSucceeded})), kSucceeded);
}

TEST(ReconcileTest, APreparingGangOccupiesItsSlotsAndIsKilledAsARunningOne) {
  const PresentGang prepares = Present("a", 1, {RankState::kPreparing, RankState::kPreparing});
  EXPECT_EQ(StateOfGang(prepares), RankState::kPreparing);
  EXPECT_THAT(Do({Wanted("a", 1), Wanted("b", 1)}, {prepares}), IsEmpty());
  EXPECT_THAT(Do({}, {prepares}), ElementsAre("kill a/1 0", "kill a/1 1"));
}

PresentGang OfAnotherStore(PresentGang gang) {
  gang.ours = false;
  return gang;
}

TEST(ReconcileTest, RanksOfAnotherStoreOrEpochAreLeftAloneThoughTheyAreNotWanted) {
  EXPECT_THAT(Do({}, {OfAnotherStore(Present("a", 1))}), IsEmpty());
  EXPECT_THAT(Do({Wanted("a", 1)}, {OfAnotherStore(Present("a", 2))}), IsEmpty());
}

TEST(ReconcileTest, AFailedRankOfAnotherStoreEndsTheOthers) {
  EXPECT_THAT(Do({}, {OfAnotherStore(Present("a", 1, {kFailed, kRunning}))}),
              ElementsAre("kill a/1 1"));
}

TEST(ReconcileTest, EndedRanksOfAnotherStoreAreClosed) {
  EXPECT_THAT(Do({}, {OfAnotherStore(Present("a", 1, {kStopped, kStopped}))}),
              ElementsAre("close a/1"));
}

TEST(ReconcileTest, SlotsOfAnotherStoresRanksAreOccupied) {
  EXPECT_THAT(Do({Wanted("b", 1)}, {OfAnotherStore(Present("a", 1))}), IsEmpty());
}

constexpr WatchdogLimits kLimits = {.median_steps = 10, .least_ms = 500};

LinkHost::Rank Stepping(int64_t median_ms, int64_t step_at_ms, const char* waiting_in = "") {
  LinkHost::Rank rank = {.connected = true, .step_at_ms = step_at_ms, .median_step_ms = median_ms};
  rank.report.set_activity(link::v1::RANK_ACTIVITY_STEPS);
  rank.report.set_next_step(12);
  rank.waiting_in = waiting_in;
  return rank;
}

TEST(WatchdogTest, ARankHangsAfterManyTimesItsMedian) {
  const std::map<int32_t, LinkHost::Rank> ranks = {{0, Stepping(100, 2000)}};
  EXPECT_TRUE(FindHung(ranks, kLimits, 3000).empty());
  const auto hung = FindHung(ranks, kLimits, 3001);
  ASSERT_EQ(hung.size(), 1u);
  EXPECT_EQ(hung[0].detail,
            "rank 0 has made no step for 1001 ms, its median is 100 ms; before step 12");
}

TEST(WatchdogTest, FastStepsHaveTheMinimumTime) {
  const std::map<int32_t, LinkHost::Rank> ranks = {{0, Stepping(1, 2000)}};
  EXPECT_TRUE(FindHung(ranks, kLimits, 2500).empty());
  EXPECT_EQ(FindHung(ranks, kLimits, 2501).size(), 1u);
}

TEST(WatchdogTest, APausedOrDisconnectedRankOrOneWithoutAMedianDoesNotHang) {
  std::map<int32_t, LinkHost::Rank> ranks = {
      {0, Stepping(1, 0)}, {1, Stepping(1, 0)}, {2, Stepping(0, 0)}};
  ranks[0].report.set_activity(link::v1::RANK_ACTIVITY_PAUSED);
  ranks[1].connected = false;
  EXPECT_TRUE(FindHung(ranks, kLimits, 1'000'000).empty());
}

TEST(WatchdogTest, TheRankThatWaitsInNoCollectiveComesFirst) {
  const std::map<int32_t, LinkHost::Rank> ranks = {
      {0, Stepping(1, 0, "all-gather")}, {1, Stepping(1, 0)}, {2, Stepping(1, 0, "all-gather")}};
  const auto hung = FindHung(ranks, kLimits, 10'000);
  ASSERT_EQ(hung.size(), 3u);
  EXPECT_EQ(hung[0].rank, 1);
  EXPECT_EQ(hung[1].rank, 0);
  EXPECT_NE(hung[1].detail.find("waits in all-gather"), std::string::npos);
}

ProcessExit Code(TrainerExit exit, const std::string& log = "") {
  return {.exit_code = static_cast<int>(exit), .log_tail = log};
}

TEST(RankEndTest, EveryExitCodeHasItsCause) {
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

TEST(RankEndTest, ARankThatSucceedsOrStopsIsNotAFailure) {
  EXPECT_EQ(EndOf(0, Code(TrainerExit::kDone), false).state, RankState::kSucceeded);
  EXPECT_EQ(EndOf(0, Code(TrainerExit::kStopped), false).state, RankState::kStopped);
  EXPECT_EQ(EndOf(0, {.signal = SIGTERM}, true).state, RankState::kStopped);
  EXPECT_EQ(EndOf(0, {.signal = SIGTERM}, false).state, RankState::kFailed);
}

TEST(RankEndTest, AFailureOfTheSpecIsReportedInTheTrainersWords) {
  const std::string log =
      "step 1 loss 5\nnibble-trainer: goes on\nnibble-trainer: data.train: /x: no such file\n";
  EXPECT_EQ(EndOf(3, Code(TrainerExit::kSpec, log), false).detail, "data.train: /x: no such file");
  EXPECT_EQ(EndOf(3, Code(TrainerExit::kDisk, log), false).detail,
            "rank 3: data.train: /x: no such file");
  EXPECT_EQ(EndOf(3, Code(TrainerExit::kError, "bang\x01\n"), false).detail,
            "rank 3 ended with exit code 1; the end of its output: bang?\n");
}

TEST(RankEndTest, AnErrorBeforeTheStartHasItsCause) {
  EXPECT_EQ(CauseOf(absl::DataLossError("bits")), v1::FAILURE_CAUSE_CHECKPOINT);
  EXPECT_EQ(CauseOf(absl::ResourceExhaustedError("full")), v1::FAILURE_CAUSE_DISK);
  EXPECT_EQ(CauseOf(absl::UnavailableError("away")), v1::FAILURE_CAUSE_MACHINE);
  EXPECT_EQ(CauseOf(WithExit(absl::InvalidArgumentError("model"), TrainerExit::kSpec)),
            v1::FAILURE_CAUSE_SPEC);
}

TEST(Utf8Test, OnlyBytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(Utf8("mod\xc3\xa8le\n"), "mod\xc3\xa8le\n");
  EXPECT_EQ(Utf8("mod\xc3"), "mod?") << "cut within a character";
  EXPECT_EQ(Utf8("\xa8le\xff"), "?le?");
  EXPECT_EQ(Utf8("\xed\xa0\x80"), "???") << "a surrogate";
}

}  // namespace
}  // namespace nibble
