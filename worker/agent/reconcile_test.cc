#include "worker/agent/reconcile.h"

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
                    std::vector<RankState> states = {RankState::kRuns, RankState::kRuns},
                    std::vector<int32_t> slots = {0, 1}) {
  PresentGang gang = {.job = job, .attempt = attempt, .slots = std::move(slots)};
  gang.told = GangOrder();
  for (size_t i = 0; i < states.size(); ++i) {
    gang.ranks.push_back({.rank = static_cast<int32_t>(i), .state = states[i]});
  }
  return gang;
}

std::vector<std::string> Do(const std::vector<WantedGang>& wanted,
                            const std::vector<PresentGang>& present, int64_t now_ms = 1000) {
  std::vector<std::string> words;
  for (const AgentAction& action : Reconcile(&wanted, present, now_ms)) {
    const char* const names[] = {"start", "tell", "dump", "kill", "forget"};
    words.push_back(absl::StrCat(names[static_cast<int>(action.kind)], " ", action.job, "/",
                                 action.attempt, action.rank < 0 ? "" : " ",
                                 action.rank < 0 ? "" : absl::StrCat(action.rank)));
  }
  return words;
}

constexpr RankState kRuns = RankState::kRuns;
constexpr RankState kFailed = RankState::kFailed;
constexpr RankState kStopped = RankState::kStopped;
constexpr RankState kSucceeded = RankState::kSucceeded;

TEST(ReconcileTest, WithoutAWordNothingChanges) {
  const std::vector<PresentGang> present = {Present("a", 1), Present("b", 1, {kFailed, kRuns})};
  EXPECT_THAT(Reconcile(nullptr, present, 1000), IsEmpty());
}

TEST(ReconcileTest, WhatShouldBeIsStarted) {
  EXPECT_THAT(Do({Wanted("a", 1)}, {}), ElementsAre("start a/1"));
}

TEST(ReconcileTest, WhatIsAsItShouldBeIsLeftAlone) {
  EXPECT_THAT(Do({Wanted("a", 1)}, {Present("a", 1)}), IsEmpty());
}

TEST(ReconcileTest, AnAttemptNeverStartsASecondTime) {
  EXPECT_THAT(Do({Wanted("a", 1)}, {Present("a", 1, {kFailed, kFailed})}), IsEmpty());
  EXPECT_THAT(Do({Wanted("a", 1)}, {Present("a", 1, {kSucceeded, kSucceeded})}), IsEmpty());
}

TEST(ReconcileTest, WhatShouldNotBeIsKilledAndThenForgotten) {
  EXPECT_THAT(Do({}, {Present("a", 1, {kRuns, kSucceeded})}), ElementsAre("kill a/1 0"));
  EXPECT_THAT(Do({}, {Present("a", 1, {kFailed, kSucceeded})}), ElementsAre("forget a/1"));
}

TEST(ReconcileTest, WhatWasKilledIsNotKilledAgain) {
  PresentGang gang = Present("a", 1);
  gang.ranks[0].killed = true;
  EXPECT_THAT(Do({}, {gang}), ElementsAre("kill a/1 1"));
}

TEST(ReconcileTest, ANewAttemptWaitsUntilTheOldOneIsGone) {
  const std::vector<WantedGang> wanted = {Wanted("a", 2, {4, 5})};
  EXPECT_THAT(Do(wanted, {Present("a", 1)}), ElementsAre("kill a/1 0", "kill a/1 1"));
  EXPECT_THAT(Do(wanted, {Present("a", 1, {kFailed, kFailed})}),
              ElementsAre("forget a/1", "start a/2"));
}

TEST(ReconcileTest, AGangWaitsForItsSlots) {
  const std::vector<WantedGang> wanted = {Wanted("b", 1, {1, 2})};
  EXPECT_THAT(Do(wanted, {Present("a", 1)}), ElementsAre("kill a/1 0", "kill a/1 1"));
  EXPECT_THAT(Do({Wanted("b", 1, {2, 3}), Wanted("a", 1)}, {Present("a", 1)}),
              ElementsAre("start b/1"));
}

TEST(ReconcileTest, ALateWishForAnOldAttemptIsNotCarriedOut) {
  EXPECT_THAT(Do({Wanted("a", 1)}, {Present("a", 2, {kFailed, kFailed})}),
              ElementsAre("forget a/2"));
  EXPECT_THAT(Do({Wanted("a", 1), Wanted("a", 2)}, {}), ElementsAre("start a/2"));
}

TEST(ReconcileTest, WhereOneRankHasFailedTheOthersAreKilled) {
  EXPECT_THAT(Do({Wanted("a", 1)}, {Present("a", 1, {kRuns, kFailed})}), ElementsAre("kill a/1 0"));
}

TEST(ReconcileTest, ARankThatIsDoneLetsTheOthersFinish) {
  EXPECT_THAT(Do({Wanted("a", 1)}, {Present("a", 1, {kRuns, kSucceeded})}), IsEmpty());
}

TEST(ReconcileTest, ARankThatHangsWritesItsStacksBeforeItsGangIsKilled) {
  PresentGang gang = Present("a", 1);
  gang.ranks[1].hangs = true;
  EXPECT_THAT(Do({Wanted("a", 1)}, {gang}), ElementsAre("dump a/1 1"));
  EXPECT_EQ(StateOfGang(gang), kRuns);
  gang.ranks[1].dumped = true;
  EXPECT_THAT(Do({Wanted("a", 1)}, {gang}), ElementsAre("kill a/1 0", "kill a/1 1"));
  EXPECT_EQ(StateOfGang(gang), kFailed);
}

TEST(ReconcileTest, AnOrderThatHasChangedIsHandedOn) {
  WantedGang wanted = Wanted("a", 1);
  wanted.order.checkpoint_request = 2;
  EXPECT_THAT(Do({wanted}, {Present("a", 1)}), ElementsAre("tell a/1"));
  PresentGang gang = Present("a", 1);
  gang.told = wanted.order;
  EXPECT_THAT(Do({wanted}, {gang}), IsEmpty());
}

TEST(ReconcileTest, AGangThatDoesNotStopInTimeIsKilled) {
  WantedGang wanted = Wanted("a", 1);
  wanted.order.wish = GangWish::kStop;
  wanted.stop_by_ms = 5000;
  PresentGang gang = Present("a", 1, {kRuns, kStopped});
  EXPECT_THAT(Do({wanted}, {gang}, 5000), ElementsAre("tell a/1"));
  gang.told = wanted.order;
  EXPECT_THAT(Do({wanted}, {gang}, 5000), IsEmpty());
  EXPECT_THAT(Do({wanted}, {gang}, 5001), ElementsAre("kill a/1 0"));
}

TEST(ReconcileTest, AGangIsAsFarAsItsLastRank) {
  EXPECT_EQ(StateOfGang(Present("a", 1, {kSucceeded, kRuns})), kRuns);
  EXPECT_EQ(StateOfGang(Present("a", 1, {kSucceeded, kStopped})), kStopped);
  EXPECT_EQ(StateOfGang(Present("a", 1, {RankState::kStands, kSucceeded})), RankState::kStands);
  EXPECT_EQ(StateOfGang(Present("a", 1, {kRuns, kFailed})), kFailed);
  EXPECT_EQ(StateOfGang(Present("a", 1, {kSucceeded, kSucceeded})), kSucceeded);
}

TEST(ReconcileTest, AGangThatPreparesHoldsItsSlotsAndIsKilledLikeOneThatRuns) {
  const PresentGang prepares = Present("a", 1, {RankState::kPrepares, RankState::kPrepares});
  EXPECT_EQ(StateOfGang(prepares), RankState::kPrepares);
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

TEST(ReconcileTest, OfThemTooARankThatHasFailedEndsTheOthers) {
  EXPECT_THAT(Do({}, {OfAnotherStore(Present("a", 1, {kFailed, kRuns}))}),
              ElementsAre("kill a/1 1"));
}

TEST(ReconcileTest, WhatIsLeftOfThemIsForgotten) {
  EXPECT_THAT(Do({}, {OfAnotherStore(Present("a", 1, {kStopped, kStopped}))}),
              ElementsAre("forget a/1"));
}

TEST(ReconcileTest, TheirSlotsAreWaitedFor) {
  EXPECT_THAT(Do({Wanted("b", 1)}, {OfAnotherStore(Present("a", 1))}), IsEmpty());
}

}  // namespace
}  // namespace nibble
