// Plans of small clusters given as text: placement and reasons.
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

TEST(Gang, GetsAllItsSlotsOrNone) {
  const Answer answer(R"(
    worker w[1-2] slots=4
    job a slots=8 at=1
    job b slots=1 at=2
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start a on w1:4+w2:4"));
  EXPECT_EQ(answer.Why("b"),
            "needs 1 slot; none free; queue main has no quota; held by a (8 slots, starting); free "
            "when it ends");
}

TEST(Reasons, ArePlainSentences) {
  const Answer answer(R"(
    worker w[1-3] slots=4 labels=device=cuda
    job busy slots=6 on=w1:4+w2:2 priority=5
    job train-7 slots=12 priority=5 at=1 needs=device=cuda
    job late slots=8 at=2 needs=device=cuda
  )");
  const std::string held =
      "; queue main has no quota; held by busy (6 slots, priority 5); free when it ends, or for a "
      "priority above 5";
  EXPECT_EQ(answer.Why("train-7"), "needs 12 slots with device=cuda; 6 free on 2 workers" + held);
  EXPECT_EQ(answer.Why("late"),
            "needs 8 slots with device=cuda; 6 free on 2 workers; waiting behind job train-7 "
            "(priority 5)" +
                held);
  EXPECT_EQ(answer.Wait("late").behind, "train-7");
}

TEST(Reasons, NameTheHoldersOfTheSlotsTheirRightsAndWhatWouldReleaseThem) {
  const Answer answer(R"(
    worker w[1-2] slots=8
    queue a quota=6
    queue main
    job own slots=6 queue=a on=w1:6
    job fast slots=5 queue=main on=w2:5 priority=9
    job pinned slots=3 queue=main on=w2:3 fixed
    job small slots=2 queue=main on=w1:2 priority=3
    job new slots=4 queue=main priority=5 at=1
    job mate slots=2 queue=a priority=-1 at=2
  )");
  EXPECT_EQ(answer.Why("new"),
            "needs 4 slots; none free; queue main has no quota; held by own (6 slots, within the "
            "quota of queue a), fast (5 slots, priority 9), pinned (3 slots, not preemptible) and "
            "others; free when they end, or for a priority above 9");
  EXPECT_EQ(answer.Why("mate"),
            "needs 2 slots; queue a uses 6 of its quota of 6 and may not borrow; held by own (6 "
            "slots, priority 0, within the quota of queue a); free when it ends, or for a priority "
            "above 0");
}

TEST(Reasons, ExplainWhyAJobCanNeverStart) {
  const Answer answer(R"(
    worker w[1-2] slots=4 labels=device=cuda
    worker w3 slots=8 labels=device=cuda cordoned
    queue main
    queue small quota=2
    job big slots=16 at=1
    job other slots=1 needs=device=tpu at=2
    job narrow slots=4 queue=small at=3
    job lost slots=1 queue=nowhere at=4
    job picky slots=8 excludes=w1 at=5
    job fits slots=1 at=6
  )");
  EXPECT_EQ(answer.Why("big"),
            "needs 16 slots; the cluster has 8 that it can use and 8 on workers that are cordoned, "
            "draining or lost");
  EXPECT_EQ(answer.Why("other"), "needs 1 slot with device=tpu; no worker has device=tpu");
  EXPECT_THAT(answer.Why("narrow"), HasSubstr("queue small may never hold more than 2"));
  EXPECT_THAT(answer.Why("lost"), HasSubstr("there is no queue \"nowhere\""));
  EXPECT_THAT(answer.Why("picky"), HasSubstr("excluded for it: w1"));
  // A job that can never start blocks no other job.
  EXPECT_THAT(answer.Actions(), ElementsAre("start fits on w1:1"));
}

TEST(Line, HigherPriorityComesFirstThenEarlierSubmission) {
  const Answer answer(R"(
    worker w1 slots=2
    job low slots=1 priority=1 at=1
    job second slots=1 priority=2 at=3
    job first slots=1 priority=2 at=2
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start first on w1:1", "start second on w1:1"));
}

TEST(Line, ARecoveringJobComesBeforeQueuedEquals) {
  const Answer answer(R"(
    worker w1 slots=2
    job older slots=2 at=1
    job hurt slots=2 at=2 recovering
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start hurt on w1:2"));
}

TEST(Line, ARecoveringJobKeepsItsPlaceDuringBackoff) {
  const Answer answer(R"(
    worker w1 slots=2
    job hurt slots=2 at=2 recovering after=+30s
    job later slots=1 at=3
    job short slots=1 at=4 takes=20s
  )");
  EXPECT_THAT(answer.Wait("hurt").reason, HasSubstr("backs off for 30 s more"));
  EXPECT_EQ(answer.Wait("later").behind, "hurt");
  // A job that ends before then may use the slots until then.
  EXPECT_THAT(answer.Actions(), ElementsAre("start short on w1:1"));
}

TEST(Line, AQueuedJobInBackoffClaimsNothing) {
  const Answer answer(R"(
    worker w1 slots=2
    job hurt slots=2 at=1 after=+30s
    job later slots=2 at=3
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start later on w1:2"));
  EXPECT_EQ(answer.Wait("hurt").kind, WaitKind::kBackOff);
}

TEST(Placement, UsesFewestWorkersThenTheTightestFit) {
  const Answer answer(R"(
    worker w1 slots=3
    worker w2 slots=8
    worker w3 slots=4
    job a slots=4
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start a on w3:4"));
}

TEST(Placement, StaysInOneRackIfThatNeedsNoMoreWorkers) {
  const Answer answer(R"(
    worker w1 slots=4 rack=r1
    worker w2 slots=4 rack=r2
    worker w3 slots=4 rack=r3
    worker w4 slots=4 rack=r2
    job a slots=8
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start a on w2:4+w4:4"));
}

TEST(Placement, PreferredHardwareIsUsedAndOtherwiseAvoided) {
  const std::string cluster = R"(
    worker b1 slots=4 labels=device=cuda,fp4=yes
    worker h1 slots=4 labels=device=cuda
  )";
  EXPECT_THAT(Answer(cluster + "job a slots=4 needs=device=cuda prefers=fp4=yes").Actions(),
              ElementsAre("start a on b1:4"));
  EXPECT_THAT(Answer(cluster + "job a slots=4 needs=device=cuda").Actions(),
              ElementsAre("start a on h1:4"));
}

TEST(Placement, ExcludedCordonedDrainingAndLostWorkersGetNothing) {
  const Answer answer(R"(
    worker w1 slots=4
    worker w2 slots=4 cordoned
    worker w3 slots=4 draining
    worker w4 slots=4 lost
    worker w5 slots=4
    job a slots=4 excludes=w1
    job b slots=4 excludes=w1,w5
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start a on w5:4"));
  EXPECT_EQ(answer.Wait("b").kind, WaitKind::kNever);
}

TEST(Drain, MovesAJobThroughACheckpoint) {
  const Answer answer(R"(
    worker w1 slots=4 draining
    worker w[2-3] slots=4
    job a slots=6 on=w1:4+w2:2
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("resize a on w2:4+w3:2"));
  EXPECT_EQ(answer.Why("a"), "moves because of draining w1");
}

TEST(Drain, StopsAJobThatFitsNowhereElse) {
  const Answer answer(R"(
    worker w1 slots=4 draining
    worker w2 slots=4
    job a slots=3 on=w1:3
    job b slots=2 on=w2:2
    job stays slots=1 on=w1:1 fixed
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("preempt a"));
  EXPECT_THAT(answer.Why("a"), AllOf(HasSubstr("because of draining w1"),
                                     HasSubstr("keeps its place in the queue")));
  EXPECT_THAT(answer.Why("stays"), HasSubstr("not preemptible"));
}

TEST(Spares, AreKeptFreeForTheJobThatRequestedThem) {
  const Answer answer(R"(
    worker w[1-2] slots=4
    job a slots=4 on=w1:4 spares=2 at=1
    job b slots=3 at=2
    job c slots=2 at=3
  )");
  EXPECT_THAT(answer.Actions(), IsEmpty());
  EXPECT_THAT(answer.Why("b"), HasSubstr("some are spare slots of job a"));
}

TEST(Spares, YieldToHigherPriority) {
  const Answer answer(R"(
    worker w[1-2] slots=4
    job a slots=4 on=w1:4 spares=2 at=1
    job b slots=4 at=2 priority=1
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start b on w2:4"));
  EXPECT_EQ(answer.Why("a"), "has 0 of 2 spare slots: no more are free");
}

TEST(Starting, SlotsAreReservedWhileOthersLeaveThem) {
  const Answer answer(R"(
    worker w1 slots=4
    job old slots=4 on=w1:4 stopping
    job new slots=4 on=w1:4 starting
    job next slots=1
  )");
  EXPECT_THAT(answer.Actions(), IsEmpty());
}

TEST(Starting, UnpromisedSlotsOfLeavingJobsArePromisedAtOnce) {
  const Answer answer(R"(
    worker w1 slots=4
    job old slots=4 on=w1:4 stopping
    job next slots=2
  )");
  EXPECT_THAT(answer.Actions(), ElementsAre("start next on w1:2 after old"));
}

TEST(Snapshot, AnInvalidOneIsRefusedNamingTheEntity) {
  const auto refusal = [](const std::string& text) {
    return std::string(Plan(Scenario(text), kNow, {}).status().message());
  };
  EXPECT_EQ(refusal("worker w slots=2\nworker w slots=2"),
            "workers.name: \"w\" is a duplicate; names must be unique");
  EXPECT_EQ(refusal("worker w slots=1025"), "worker w: slots: 1025; allowed: 0 to 1024");
  EXPECT_EQ(refusal("queue q quota=-2"), "queue q: quota: -2; allowed: -1 to 1099511627776");
  EXPECT_EQ(refusal("queue q cohort=c"), "queue q: cohort: \"c\"; allowed only with a quota");
  EXPECT_EQ(refusal("job j slots=4-2"), "job j: max_slots: 2; allowed: 4 to 16777216");
  EXPECT_EQ(refusal("job j slots=2-4 sizes=2,5"), "job j: sizes: 5; allowed: 3 to 4");
  EXPECT_EQ(refusal("job j slots=1 running"), "job j: held: 0 workers; its phase needs some");
  EXPECT_EQ(refusal("job j slots=2 on=w:1+w:1"), "job j: held: worker \"w\" is a duplicate");
}

}  // namespace
}  // namespace nibble::scheduler
