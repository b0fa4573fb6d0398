#include "worker/trainer/loop/job_control.h"

#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "recipe/recipe_json.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/comm/gloo_collective.h"
#include "worker/trainer/link/link_host.h"

namespace nibble {
namespace {

constexpr std::chrono::seconds kPatience(20);

Revision RevisionAt(int64_t number, int64_t first_step) {
  return {.number = number, .first_step = first_step, .recipe = {.preset = "nvfp4"}};
}

Timeline TimelineOf(std::vector<Revision> revisions) {
  absl::StatusOr<Timeline> timeline = Timeline::FromRevisions(std::move(revisions));
  EXPECT_TRUE(timeline.ok()) << timeline.status();
  return *std::move(timeline);
}

// number@first_step, in order.
std::string Shape(const absl::StatusOr<Timeline>& timeline) {
  if (!timeline.ok()) return timeline.status().ToString();
  std::string shape;
  for (const Revision& revision : timeline->revisions()) {
    absl::StrAppend(&shape, shape.empty() ? "" : " ", revision.number, "@", revision.first_step);
  }
  return shape;
}

TEST(AdoptTimelineTest, ANewRevisionHoldsFromTheStepItIsOfferedWith) {
  const Timeline run = TimelineOf({RevisionAt(1, 0)});
  const Timeline offered = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 50)});
  EXPECT_EQ(Shape(AdoptTimeline(run, offered, 7)), "1@0 2@50");
}

TEST(AdoptTimelineTest, ARevisionOfAStepThatIsOverHoldsFromTheNextAndSoDoThoseAfterIt) {
  const Timeline run = TimelineOf({RevisionAt(1, 0)});
  const Timeline offered =
      TimelineOf({RevisionAt(1, 0), RevisionAt(2, 5), RevisionAt(3, 6), RevisionAt(4, 90)});
  EXPECT_EQ(Shape(AdoptTimeline(run, offered, 8)), "1@0 2@8 3@8 4@90");
}

TEST(AdoptTimelineTest, WhatHasBegunKeepsItsStep) {
  const Timeline run = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 8)});
  const Timeline offered = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 5), RevisionAt(3, 9)});
  EXPECT_EQ(Shape(AdoptTimeline(run, offered, 20)), "1@0 2@8 3@20");
}

TEST(AdoptTimelineTest, WhatHasBegunStaysThoughItIsNoLongerOffered) {
  const Timeline run = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 8)});
  const Timeline offered = TimelineOf({RevisionAt(1, 0), RevisionAt(3, 7), RevisionAt(4, 8)});
  EXPECT_EQ(Shape(AdoptTimeline(run, offered, 10)), "1@0 2@8 3@10 4@10");
}

TEST(AdoptTimelineTest, WhatIsPendingAndNoLongerOfferedGoes) {
  const Timeline run = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 80)});
  const Timeline offered = TimelineOf({RevisionAt(1, 0), RevisionAt(3, 30), RevisionAt(4, 80)});
  EXPECT_EQ(Shape(AdoptTimeline(run, offered, 10)), "1@0 3@30 4@80");
}

TEST(AdoptTimelineTest, ARunThatHasNotBegunTakesWhatItIsOffered) {
  const Timeline run = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 40)});
  const Timeline offered = TimelineOf({RevisionAt(3, 0), RevisionAt(5, 60)});
  EXPECT_EQ(Shape(AdoptTimeline(run, offered, 0)), "3@0 5@60");
}

Revision RefusedAt(int64_t number, int64_t first_step) {
  Revision revision = RevisionAt(number, first_step);
  revision.refused = "no memory";
  return revision;
}

TEST(AdoptTimelineTest, WhatTheRunHasRefusedStaysRefusedThoughItIsOfferedAgain) {
  const Timeline run = TimelineOf({RevisionAt(1, 0), RefusedAt(2, 8)});
  const Timeline offered = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 8), RevisionAt(3, 20)});
  const absl::StatusOr<Timeline> adopted = AdoptTimeline(run, offered, 12);
  EXPECT_EQ(Shape(adopted), "1@0 2@8 3@20");
  EXPECT_EQ(adopted->At(12).number, 1);
  EXPECT_EQ(adopted->At(20).number, 3);
}

TEST(AdoptTimelineTest, WhatIsOfferedAsRefusedHoldsAtNoStepOfARunThatBeginsBeforeIt) {
  const Timeline run = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 8)});
  const Timeline offered = TimelineOf({RevisionAt(1, 0), RefusedAt(2, 8), RevisionAt(3, 6)});
  const absl::StatusOr<Timeline> adopted = AdoptTimeline(run, offered, 5);
  EXPECT_EQ(Shape(adopted), "1@0 2@8 3@6");
  EXPECT_EQ(adopted->At(9).number, 3);
}

TEST(AdoptTimelineTest, OfALongHistoryTheLastTwoAreKeptAndEveryStepToComeIsRunAlike) {
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

class JobControlTest : public testing::Test {
 protected:
  JobControlTest() {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    auto host = LinkHost::Start(
        {.address = directory_ + "/link", .attempt = 1, .first_rank = 0, .ranks = 2, .clock = [] {
           return int64_t{0};
         }});
    EXPECT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
  }
  ~JobControlTest() override {
    host_.reset();
    std::filesystem::remove_all(directory_);
  }

  std::unique_ptr<JobControl> Control(Collective& collective) {
    auto control = JobControl::Create(collective, stop_, host_->address(), 1);
    EXPECT_TRUE(control.ok()) << control.status();
    return *std::move(control);
  }
  // Boundaries until one is as `done` wants.
  template <class Done>
  JobControl::Boundary AgreeUntil(JobControl& control, Done done) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < until) {
      absl::StatusOr<JobControl::Boundary> boundary =
          control.Agree(false, std::chrono::milliseconds(100));
      EXPECT_TRUE(boundary.ok()) << boundary.status();
      if (!boundary.ok() || done(*boundary)) return *std::move(boundary);
    }
    ADD_FAILURE() << "never agreed";
    return {};
  }

  std::string directory_ = "/tmp/nibble-control-XXXXXX";  // sockets have short names
  std::atomic<bool> stop_ = false;
  std::unique_ptr<LinkHost> host_;
};

TEST_F(JobControlTest, TheFirstBoundaryKnowsWhatTheDaemonWants) {
  const Timeline timeline = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 9)});
  host_->Ask({.command = ControlWord::Command::kPause,
              .checkpoint_request = 4,
              .timeline_revision = 2,
              .timeline = ToJson(timeline)});
  const std::unique_ptr<Collective> collective = CreateLocal();
  const std::unique_ptr<JobControl> control = Control(*collective);
  const auto boundary = control->Agree(false);
  ASSERT_TRUE(boundary.ok()) << boundary.status();
  EXPECT_TRUE(boundary->pause);
  EXPECT_FALSE(boundary->stop);
  EXPECT_EQ(boundary->checkpoint_request, 4);
  ASSERT_TRUE(boundary->timeline.has_value());
  EXPECT_EQ(**boundary->timeline, timeline);
  const auto next = control->Agree(false);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_FALSE(next->timeline.has_value()) << "the same timeline is shared once";
}

TEST_F(JobControlTest, AStopOfTheDaemonIsWithACheckpointAndASignalsIsNot) {
  host_->Ask({});
  const std::unique_ptr<Collective> collective = CreateLocal();
  const std::unique_ptr<JobControl> control = Control(*collective);
  stop_ = true;
  const auto by_signal = control->Agree(false);
  ASSERT_TRUE(by_signal.ok());
  EXPECT_TRUE(by_signal->stop);
  EXPECT_FALSE(by_signal->last_checkpoint);
  stop_ = false;
  host_->Ask({.command = ControlWord::Command::kStop});
  const auto by_daemon = AgreeUntil(*control, [](const auto& boundary) { return boundary.stop; });
  EXPECT_TRUE(by_daemon.last_checkpoint);
}

TEST_F(JobControlTest, TheDaemonSeesInWhichCollectiveARankStands) {
  host_->Ask({});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto collective =
          CreateGloo({.rank = rank, .world = 2, .rendezvous = absl::StrCat("file:", directory_)});
      ASSERT_TRUE(collective.ok()) << collective.status();
      const std::unique_ptr<JobControl> control = Control(**collective);
      const auto stands = [&] { return host_->Ranks()[0].news.waiting_in == "ExchangeSmall #1"; };
      const auto until = std::chrono::steady_clock::now() + kPatience;
      // Rank 0 goes ahead and cannot go on without this one.
      while (rank == 1 && !stands() && std::chrono::steady_clock::now() < until) {
        std::this_thread::yield();
      }
      EXPECT_TRUE(rank == 0 || stands());
      EXPECT_TRUE(control->Agree(false).ok());
      EXPECT_EQ(host_->Ranks()[rank].news.waiting_in, "");
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(JobControlTest, ADaemonThatIsGoneEndsTheRun) {
  host_->Ask({});
  const std::unique_ptr<Collective> collective = CreateLocal();
  const std::unique_ptr<JobControl> control = Control(*collective);
  host_.reset();
  const auto boundary = control->Agree(false, kPatience);
  EXPECT_TRUE(absl::IsUnavailable(boundary.status())) << boundary.status();
}

TEST_F(JobControlTest, ATimelineLargerThanAnExchangeReachesEveryRankAtTheSameBoundary) {
  std::vector<Revision> revisions;
  for (int64_t i = 0; i < 200; ++i) {
    revisions.push_back(RevisionAt(i + 1, i));
    revisions.back().reason = std::string(100, 'r');
  }
  const Timeline timeline = TimelineOf(std::move(revisions));
  host_->Ask({});
  std::vector<int> taken_up(2, -1);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto collective =
          CreateGloo({.rank = rank, .world = 2, .rendezvous = absl::StrCat("file:", directory_)});
      ASSERT_TRUE(collective.ok()) << collective.status();
      const std::unique_ptr<JobControl> control = Control(**collective);
      for (int number = 0; taken_up[static_cast<size_t>(rank)] < 0; ++number) {
        if (rank == 0 && number == 3) {
          host_->Ask({.timeline_revision = timeline.latest(), .timeline = ToJson(timeline)});
        }
        const auto boundary = control->Agree(rank == 1, std::chrono::milliseconds(100));
        ASSERT_TRUE(boundary.ok()) << boundary.status();
        EXPECT_TRUE(boundary->storing);
        if (!boundary->timeline.has_value()) continue;
        EXPECT_EQ(**boundary->timeline, timeline);
        taken_up[static_cast<size_t>(rank)] = number;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_GE(taken_up[0], 3);
  EXPECT_EQ(taken_up[0], taken_up[1]);
}

TEST_F(JobControlTest, WhatOneRankCannotDoEveryRankLearnsWithItsReason) {
  host_->Ask({});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto collective =
          CreateGloo({.rank = rank, .world = 2, .rendezvous = absl::StrCat("file:", directory_)});
      ASSERT_TRUE(collective.ok()) << collective.status();
      const std::unique_ptr<JobControl> control = Control(**collective);
      const auto all_can = control->AgreeOn(absl::OkStatus());
      ASSERT_TRUE(all_can.ok()) << all_can.status();
      EXPECT_EQ(*all_can, "");
      const auto one_cannot = control->AgreeOn(rank == 1 ? absl::ResourceExhaustedError("no memory")
                                                         : absl::OkStatus());
      ASSERT_TRUE(one_cannot.ok()) << one_cannot.status();
      EXPECT_EQ(*one_cannot, "rank 1: no memory");
      const auto long_words =
          control->AgreeOn(absl::ResourceExhaustedError(std::string(5000, 'x')));
      ASSERT_TRUE(long_words.ok()) << long_words.status();
      EXPECT_EQ(*long_words, "rank 0: " + std::string(511, 'x'));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(JobControlTest, WhatIsNoTimelineIsToldWithItsRevisionAndEndsNothing) {
  host_->Ask({.timeline_revision = 3, .timeline = "{\"version\":1}"});
  const std::unique_ptr<Collective> collective = CreateLocal();
  const std::unique_ptr<JobControl> control = Control(*collective);
  const auto boundary = control->Agree(false);
  ASSERT_TRUE(boundary.ok()) << boundary.status();
  ASSERT_TRUE(boundary->timeline.has_value());
  EXPECT_FALSE(boundary->timeline->ok());
  EXPECT_EQ(boundary->revision, 3);
}

}  // namespace
}  // namespace nibble
