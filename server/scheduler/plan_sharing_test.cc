// How jobs share slots, in plans of small clusters given as text: backfill, preemption, elastic
// jobs, quotas.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/scheduler/invariants_testing.h"
#include "server/scheduler/plan.h"
#include "server/scheduler/scenario_testing.h"

namespace nibble::scheduler {
namespace {

using ::testing::AllOf;
using testing::Answer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kNow;
using testing::Scenario;

TEST(Backfill, TakesSlotsThatTheJobAheadWillNotNeed) {
  // "ahead" waits for the eight slots of "old"; six are free, and it needs only two of them.
  const Answer answer(R"(
    worker w1 slots=8
    worker w2 slots=6
    job old slots=8 on=w1:8 ends=+60s
    job ahead slots=10 at=1
    job behind slots=4 at=2
    job much slots=5 at=3
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start behind on w2:4"));
  EXPECT_EQ(answer.Wait("ahead").due_ms, kNow + 60'000);
  EXPECT_EQ(answer.Wait("ahead").reserved, (Placement{{"w2", 2}}));
  EXPECT_THAT(answer.Why("ahead"), HasSubstr("expected in 60 s"));
}

TEST(Backfill, BorrowsClaimedSlotsOnlyUntilTheyAreDue) {
  const std::string cluster = R"(
    worker w[1-2] slots=4
    job old slots=4 on=w1:4 ends=+60s
    job ahead slots=8 at=1
  )";
  EXPECT_THAT(Answer(cluster + "job brief slots=4 at=2 takes=60s").Actions(),
              ElementsAre("start brief on w2:4"));
  EXPECT_THAT(Answer(cluster + "job brief slots=4 at=2 takes=61s").Actions(), IsEmpty());
  EXPECT_THAT(Answer(cluster + "job brief slots=4 at=2").Actions(), IsEmpty());
}

TEST(Backfill, NoJobPassesAJobWhoseSlotsAreDueAtAnUnknownTime) {
  const Answer answer(R"(
    worker w[1-2] slots=4
    worker c1 slots=4 labels=device=cpu
    job old slots=4 on=w1:4
    job ahead slots=12 at=1
    job brief slots=1 at=2 takes=1s
  )");
  EXPECT_THAT(answer.Actions(), IsEmpty());
  EXPECT_EQ(answer.Wait("ahead").due_ms, 0);
  EXPECT_EQ(answer.Wait("ahead").reserved, (Placement{{"c1", 4}, {"w2", 4}}));
}

TEST(Backfill, OtherHardwareIsNotReserved) {
  const Answer answer(R"(
    worker g1 slots=4 labels=device=cuda
    worker c1 slots=4 labels=device=cpu
    job old slots=2 on=g1:2
    job ahead slots=4 at=1 needs=device=cuda
    job behind slots=4 at=2 needs=device=cpu
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start behind on c1:4"));
}

TEST(Preemption, HelpsStrictlyHigherPriorityOnly) {
  const std::string cluster = "worker w1 slots=4\njob old slots=4 on=w1:4 priority=2\n";
  EXPECT_THAT(Answer(cluster + "job new slots=4 priority=2").Actions(), IsEmpty());
  const Answer answer(cluster + "job new slots=4 priority=3");
  EXPECT_THAT(answer.Actions(), ElementsAre("preempt old for new", "start new on w1:4 after old"));
  EXPECT_THAT(answer.Why("old"), AllOf(HasSubstr("is preempted for job new (priority 3)"),
                                       HasSubstr("keeps its place")));
}

TEST(Preemption, TakesTheOneWithLeastWorkSinceItsCheckpoint) {
  const Answer answer(R"(
    worker w[1-3] slots=4
    job a slots=4 on=w1:4 saved=-500s
    job b slots=4 on=w2:4 saved=-20s
    job c slots=4 on=w3:4 saved=-300s
    job new slots=4 priority=1
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("preempt b for new", "start new on w2:4 after b"));
}

TEST(Preemption, PreemptsNoJobThatIsNotNeeded) {
  // The cheapest first would be a, b and c; then d alone turns out to suffice.
  const Answer answer(R"(
    worker w[1-2] slots=4
    job a slots=1 on=w1:1 saved=-1s
    job b slots=1 on=w1:1 saved=-2s
    job c slots=2 on=w1:2 saved=-3s
    job d slots=4 on=w2:4 saved=-900s
    job new slots=5 priority=1 spares=0
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("preempt a for new", "preempt d for new",
                                            "start new on w1:1+w2:4 after a after d"));
}

TEST(Preemption, PreemptsNoJobIfTheJobStillWouldNotFit) {
  const Answer answer(R"(
    worker w[1-2] slots=4
    job a slots=4 on=w1:4
    job b slots=4 on=w2:4 fixed
    job new slots=8 priority=1
  )");
  EXPECT_THAT(answer.Actions(), IsEmpty());
}

TEST(Preemption, DoesNotHappenTwiceForTheSameJob) {
  const Snapshot before = Scenario(R"(
    worker w[1-2] slots=4
    job a slots=4 on=w1:4
    job b slots=4 on=w2:4
    job new slots=4 priority=1
  )");
  const Decisions plan = *Plan(before, kNow, {});
  const Answer again(testing::Apply(before, plan, kNow));
  EXPECT_THAT(again.Actions(), IsEmpty());
}

TEST(Elastic, StartsWithTheFreeSlotsAndGrowsWhenNoJobWaits) {
  EXPECT_THAT(Answer("worker w1 slots=6\njob a slots=2-8 sizes=2,4,8").Actions(),
              ElementsAre("start a on w1:4"));
  const std::string running = "worker w1 slots=8\njob a slots=2-8 sizes=2,4,8 on=w1:2 ";
  EXPECT_THAT(Answer(running + "resized=-600s").Actions(), ElementsAre("resize a on w1:8"));
  const Answer early(running + "resized=-599s");
  EXPECT_THAT(early.Actions(), IsEmpty());
  EXPECT_THAT(early.Why("a"), HasSubstr("stays at 2 of up to 8 slots: may grow again in 1 s"));
  const Answer crowded(running + "resized=-600s\njob big slots=8 at=1");
  EXPECT_THAT(crowded.Why("a"), HasSubstr("others come first: job big (priority 0) waits"));
}

TEST(Elastic, SeveralJobsStartSmallRatherThanOneLarge) {
  const Answer answer(R"(
    worker w1 slots=4
    job a slots=2-4 at=1
    job b slots=2-4 at=2
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start a on w1:2", "start b on w1:2"));
}

TEST(Elastic, ShrinksBeforeAnyJobIsPreempted) {
  const Answer answer(R"(
    worker w[1-2] slots=4
    job wide slots=2-8 sizes=2,4,8 on=w1:4 priority=1
    job low slots=4 on=w2:4 priority=0
    job new slots=2 priority=1 at=1
  )");
  EXPECT_THAT(answer.Actions(),
              ElementsAre("resize wide on w1:2 for new", "start new on w1:2 after wide"));
  EXPECT_THAT(answer.Why("wide"), HasSubstr("shrinks to 2 slots for job new"));
}

TEST(Elastic, DoesNotShrinkForLowerPriority) {
  const Answer answer(R"(
    worker w1 slots=4
    job wide slots=2-4 on=w1:4 priority=2
    job new slots=2 priority=1
  )");
  EXPECT_THAT(answer.Actions(), IsEmpty());
}

TEST(Elastic, AnOwnerShrinksForAHigherPriorityOfAnyQueue) {
  const std::string cluster = R"(
    worker w1 slots=4
    queue a quota=4
    queue main
    job wide slots=1-4 queue=a on=w1:4
  )";
  const Answer answer(cluster + "job raised slots=2 queue=main priority=1");
  EXPECT_THAT(answer.Actions(),
              ElementsAre("resize wide on w1:2 for raised", "start raised on w1:2 after wide"));
  EXPECT_THAT(answer.Why("wide"), HasSubstr("shrinks to 2 slots for job raised (priority 1)"));
  // It keeps its smallest size while an equal of another queue waits.
  EXPECT_THAT(Answer(cluster + "job raised slots=4 queue=main priority=1").Actions(), IsEmpty());
  EXPECT_THAT(Answer(cluster + "job equal slots=2 queue=main").Actions(), IsEmpty());
  EXPECT_THAT(Answer(cluster + "job lower slots=2 queue=a priority=-1").Actions(), IsEmpty());
}

TEST(Elastic, AnOwnerShrinksForEqualsOfItsQueue) {
  const Answer answer(R"(
    worker w1 slots=8
    queue a quota=4
    job wide slots=1-4 queue=a on=w1:4
    job mate slots=3 queue=a at=1
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("resize wide on w1:1 for mate", "start mate on w1:3"));
}

TEST(Elastic, SlotsGivenToAHigherPriorityAreNotTakenBack) {
  const Snapshot before = Scenario(R"(
    worker w1 slots=4
    queue a quota=4 cohort=c
    queue b quota=4 cohort=c
    job wide slots=1-4 queue=a on=w1:4
    job raised slots=2 queue=b priority=1
  )");
  const Decisions plan = *Plan(before, kNow, {});
  EXPECT_THAT(Answer(before).Actions(),
              ElementsAre("resize wide on w1:2 for raised", "start raised on w1:2 after wide"));
  EXPECT_THAT(Answer(testing::Apply(before, plan, kNow)).Actions(), IsEmpty());
}

TEST(Quota, IsNotExceededWithoutACohort) {
  const Answer answer(R"(
    worker w1 slots=8
    queue a quota=4
    job one slots=3 queue=a at=1
    job two slots=2 queue=a at=2
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start one on w1:3"));
  EXPECT_EQ(answer.Why("two"),
            "needs 2 slots; queue a uses 3 of its quota of 4 and may not borrow; held by one (3 "
            "slots, starting); free when it ends");
}

TEST(Quota, IdleQuotaIsLentWithinTheCohortUpToTheLimit) {
  const std::string cluster = R"(
    worker w1 slots=8
    queue a quota=4 cohort=c borrow=2
    queue b quota=4 cohort=c
  )";
  EXPECT_THAT(Answer(cluster + "job one slots=6 queue=a").Actions(),
              ElementsAre("start one on w1:6"));
  EXPECT_EQ(Answer(cluster + "job one slots=7 queue=a").Wait("one").kind, WaitKind::kNever);
}

TEST(Quota, TheOwnerReclaimsBorrowedSlotsWhateverThePriority) {
  const std::string cluster = R"(
    worker w1 slots=8
    queue a quota=4 cohort=c
    queue b quota=4 cohort=c
    job own slots=4 queue=a on=w1:4 priority=9
    job lent slots=4 queue=a on=w1:4 priority=8
  )";
  EXPECT_THAT(Answer(cluster + "job back slots=4 queue=b priority=0").Actions(),
              ElementsAre("preempt lent for back", "start back on w1:4 after lent"));
}

TEST(Quota, NoBorrowerDisplacesAnOwner) {
  const Answer answer(R"(
    worker w1 slots=8
    queue a quota=4 cohort=c
    queue b quota=4 cohort=c
    job own slots=4 queue=a on=w1:4 priority=0
    job lent slots=4 queue=a on=w1:4 priority=0 at=5
    job greedy slots=8 queue=b priority=9
  )");
  EXPECT_THAT(answer.Actions(), IsEmpty());
}

TEST(Quota, AJobThatExactlyFitsItGoesBeforeABorrower) {
  // "wide" borrows; then "fits" owns the whole quota of its queue, and "greedy" would borrow.
  const std::string cluster = R"(
    worker w1 slots=10
    queue a quota=4 cohort=c
    queue b quota=2 cohort=c
    queue d quota=4 cohort=c
    job wide slots=6 queue=a at=1
    job greedy slots=4 queue=b at=2
  )";
  EXPECT_THAT(Answer(cluster + "job fits slots=4 queue=a at=3").Actions(),
              ElementsAre("start wide on w1:6", "start fits on w1:4"));
  EXPECT_THAT(Answer(cluster + "job more slots=5 queue=a at=3").Actions(),
              ElementsAre("start wide on w1:6", "start greedy on w1:4"));
}

TEST(Quota, NoJobBorrowsPastAJobThatWaitsInTheQueue) {
  const Answer answer(R"(
    worker g1 slots=4 labels=device=cuda
    worker c1 slots=8 labels=device=cpu
    queue a quota=4 cohort=c
    queue b quota=8 cohort=c
    job old slots=1 queue=b on=g1:1 priority=9
    job first slots=4 queue=a needs=device=cuda at=1
    job second slots=4 queue=a needs=device=cpu at=2
  )");
  EXPECT_THAT(answer.Actions(), IsEmpty());
  EXPECT_EQ(answer.Wait("second").behind, "first");
  EXPECT_EQ(answer.Wait("second").kind, WaitKind::kQuota);
}

}  // namespace

}  // namespace nibble::scheduler
