#include "worker/trainer/loop/recipe_switch.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/trainer/loop/timeline_testing.h"

namespace nibble {
namespace {

// number@first_step, in order.
std::string Shape(const absl::StatusOr<Timeline>& timeline) {
  if (!timeline.ok()) return timeline.status().ToString();
  std::string shape;
  for (const Revision& revision : timeline->revisions()) {
    absl::StrAppend(&shape, shape.empty() ? "" : " ", revision.number, "@", revision.first_step);
  }
  return shape;
}

TEST(AdoptTimelineTest, ANewRevisionTakesEffectAtItsOfferedStep) {
  const Timeline run = TimelineOf({RevisionAt(1, 0)});
  const Timeline offered = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 50)});
  EXPECT_EQ(Shape(AdoptTimeline(run, offered, 7)), "1@0 2@50");
}

TEST(AdoptTimelineTest, ARevisionOfAPastStepTakesEffectAtTheNextStepAndSoDoThoseAfterIt) {
  const Timeline run = TimelineOf({RevisionAt(1, 0)});
  const Timeline offered =
      TimelineOf({RevisionAt(1, 0), RevisionAt(2, 5), RevisionAt(3, 6), RevisionAt(4, 90)});
  EXPECT_EQ(Shape(AdoptTimeline(run, offered, 8)), "1@0 2@8 3@8 4@90");
}

TEST(AdoptTimelineTest, ARevisionThatHasBegunKeepsItsStep) {
  const Timeline run = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 8)});
  const Timeline offered = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 5), RevisionAt(3, 9)});
  EXPECT_EQ(Shape(AdoptTimeline(run, offered, 20)), "1@0 2@8 3@20");
}

TEST(AdoptTimelineTest, ARevisionThatHasBegunStaysAlthoughItIsNoLongerOffered) {
  const Timeline run = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 8)});
  const Timeline offered = TimelineOf({RevisionAt(1, 0), RevisionAt(3, 7), RevisionAt(4, 8)});
  EXPECT_EQ(Shape(AdoptTimeline(run, offered, 10)), "1@0 2@8 3@10 4@10");
}

TEST(AdoptTimelineTest, APendingRevisionThatIsNoLongerOfferedIsRemoved) {
  const Timeline run = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 80)});
  const Timeline offered = TimelineOf({RevisionAt(1, 0), RevisionAt(3, 30), RevisionAt(4, 80)});
  EXPECT_EQ(Shape(AdoptTimeline(run, offered, 10)), "1@0 3@30 4@80");
}

TEST(AdoptTimelineTest, ARunThatHasNotBegunAdoptsTheOfferedTimeline) {
  const Timeline run = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 40)});
  const Timeline offered = TimelineOf({RevisionAt(3, 0), RevisionAt(5, 60)});
  EXPECT_EQ(Shape(AdoptTimeline(run, offered, 0)), "3@0 5@60");
}

Revision RefusedAt(int64_t number, int64_t first_step) {
  Revision revision = RevisionAt(number, first_step);
  revision.refused = "no memory";
  return revision;
}

TEST(AdoptTimelineTest, ARefusedRevisionStaysRefusedAlthoughItIsOfferedAgain) {
  const Timeline run = TimelineOf({RevisionAt(1, 0), RefusedAt(2, 8)});
  const Timeline offered = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 8), RevisionAt(3, 20)});
  const absl::StatusOr<Timeline> adopted = AdoptTimeline(run, offered, 12);
  EXPECT_EQ(Shape(adopted), "1@0 2@8 3@20");
  EXPECT_EQ(adopted->At(12).number, 1);
  EXPECT_EQ(adopted->At(20).number, 3);
}

TEST(AdoptTimelineTest, ARevisionOfferedAsRefusedTakesEffectAtNoStep) {
  const Timeline run = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 8)});
  const Timeline offered = TimelineOf({RevisionAt(1, 0), RefusedAt(2, 8), RevisionAt(3, 6)});
  const absl::StatusOr<Timeline> adopted = AdoptTimeline(run, offered, 5);
  EXPECT_EQ(Shape(adopted), "1@0 2@8 3@6");
  EXPECT_EQ(adopted->At(9).number, 3);
}

TEST(AdoptTimelineTest, OfALongHistoryTheLastTwoAreKeptAndEveryLaterStepRunsAsBefore) {
  std::vector<Revision> revisions;
  for (int64_t i = 0; i < 200; ++i) revisions.push_back(RevisionAt(i + 1, 3 * i));
  const Timeline run = TimelineOf(revisions);
  // The coordinator has archived what lies before its newest checkpoint.
  std::vector<Revision> offered(revisions.begin() + 90, revisions.end());
  offered[0].first_step = 0;
  offered.push_back(RevisionAt(201, 700));
  const auto adopted = AdoptTimeline(run, TimelineOf(offered), 301);
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_EQ(adopted->revisions()[0].number, 100);
  EXPECT_EQ(adopted->revisions()[1].first_step, 300);
  EXPECT_EQ(adopted->revisions().size(), 102u);
  for (int64_t step = 300; step < 700; ++step) {
    EXPECT_EQ(adopted->At(step).number, run.At(step).number) << "step " << step;
  }
  EXPECT_EQ(adopted->At(700).number, 201);
}

}  // namespace
}  // namespace nibble
