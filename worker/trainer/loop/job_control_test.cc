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
#include "worker/link/link_host.h"
#include "worker/link/rank_link.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/comm/gloo_collective.h"
#include "worker/trainer/comm/rendezvous.h"
#include "worker/trainer/comm/tcp_store_server.h"
#include "worker/trainer/loop/timeline_testing.h"

namespace nibble {
namespace {

constexpr std::chrono::seconds kPatience(20);

// A command with that timeline.
link::v1::Command CommandOf(const std::vector<Revision>& revisions) {
  link::v1::Command command;
  for (const Revision& revision : revisions) {
    v1::RecipeRevision& message = *command.add_revisions();
    message.set_number(revision.number);
    message.set_first_step(revision.first_step);
    message.set_reason(revision.reason);
    message.mutable_recipe()->set_preset(revision.recipe.preset);
  }
  return command;
}

link::v1::Command CommandOf(v1::GangCommand kind) {
  link::v1::Command command;
  command.set_command(kind);
  return command;
}

// A rank's end of the link, and its control.
struct TestRank {
  std::unique_ptr<RankLink> link;
  std::unique_ptr<JobControl> control;
};

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
    auto store = TcpStoreServer::Start("127.0.0.1:0");
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    rendezvous_ = absl::StrCat(Rendezvous::kServedPrefix, "127.0.0.1:", store_->port());
  }
  ~JobControlTest() override {
    host_.reset();
    std::filesystem::remove_all(directory_);
  }

  TestRank Connect(Collective& collective) {
    auto link =
        RankLink::Connect({.address = host_->address(), .rank = collective.rank(), .attempt = 1});
    EXPECT_TRUE(link.ok()) << link.status();
    TestRank rank = {.link = *std::move(link)};
    rank.control = std::make_unique<JobControl>(collective, stop_, rank.link.get());
    return rank;
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
  std::unique_ptr<TcpStoreServer> store_;  // in which the ranks of a test find each other
  std::string rendezvous_;
};

TEST_F(JobControlTest, TheFirstBoundaryHasTheCommandOfTheDaemon) {
  const Timeline timeline = TimelineOf({RevisionAt(1, 0), RevisionAt(2, 9)});
  link::v1::Command command = CommandOf(timeline.revisions());
  command.set_command(v1::GANG_COMMAND_PAUSE);
  command.set_checkpoint_request(4);
  host_->SetCommand(command);
  const std::unique_ptr<Collective> collective = CreateLocal();
  const TestRank self = Connect(*collective);
  JobControl* const control = self.control.get();
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

TEST_F(JobControlTest, WordsThatWentWithAStepAreTheNextBoundaryWithoutAnExchange) {
  const std::unique_ptr<Collective> collective = CreateLocal();
  const TestRank self = Connect(*collective);
  JobControl* const control = self.control.get();
  stop_ = true;
  const HostWords stopping = control->Ask(/*storing=*/true);
  stop_ = false;
  control->Hear({control->Ask(/*storing=*/false), stopping});
  const uint64_t before = collective->operations();
  const auto heard = control->Agree(false);
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_TRUE(heard->stop);
  EXPECT_TRUE(heard->storing);
  EXPECT_EQ(collective->operations(), before);
  const auto asked = control->Agree(false);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_FALSE(asked->stop) << "words hold for one boundary";
  EXPECT_EQ(collective->operations(), before + 1);
}

TEST_F(JobControlTest, AStopByTheDaemonIsWithACheckpointAndOneByASignalIsNot) {
  const std::unique_ptr<Collective> collective = CreateLocal();
  const TestRank self = Connect(*collective);
  JobControl* const control = self.control.get();
  stop_ = true;
  const auto by_signal = control->Agree(false);
  ASSERT_TRUE(by_signal.ok());
  EXPECT_TRUE(by_signal->stop);
  EXPECT_FALSE(by_signal->last_checkpoint);
  stop_ = false;
  host_->SetCommand(CommandOf(v1::GANG_COMMAND_STOP));
  const auto by_daemon = AgreeUntil(*control, [](const auto& boundary) { return boundary.stop; });
  EXPECT_TRUE(by_daemon.last_checkpoint);
}

TEST_F(JobControlTest, TheDaemonReadsInWhichCollectiveARankWaits) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto collective = CreateGloo({.rank = rank, .world = 2, .rendezvous = rendezvous_});
      ASSERT_TRUE(collective.ok()) << collective.status();
      const TestRank self = Connect(**collective);
      JobControl* const control = self.control.get();
      const auto waits = [&] { return host_->Ranks()[0].waiting_in == "ExchangeSmall #1"; };
      const auto until = std::chrono::steady_clock::now() + kPatience;
      // Rank 0 enters the collective and waits there for this one.
      while (rank == 1 && !waits() && std::chrono::steady_clock::now() < until) {
        std::this_thread::yield();
      }
      EXPECT_TRUE(rank == 0 || waits());
      EXPECT_TRUE(control->Agree(false).ok());
      EXPECT_EQ(host_->Ranks()[rank].waiting_in, "");
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(JobControlTest, ADaemonThatIsGoneEndsTheRun) {
  const std::unique_ptr<Collective> collective = CreateLocal();
  const TestRank self = Connect(*collective);
  JobControl* const control = self.control.get();
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
  std::vector<int> adopted_at(2, -1);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto collective = CreateGloo({.rank = rank, .world = 2, .rendezvous = rendezvous_});
      ASSERT_TRUE(collective.ok()) << collective.status();
      const TestRank self = Connect(**collective);
      JobControl* const control = self.control.get();
      for (int number = 0; adopted_at[static_cast<size_t>(rank)] < 0; ++number) {
        if (rank == 0 && number == 3) {
          host_->SetCommand(CommandOf(timeline.revisions()));
        }
        const auto boundary = control->Agree(rank == 1, std::chrono::milliseconds(100));
        ASSERT_TRUE(boundary.ok()) << boundary.status();
        EXPECT_TRUE(boundary->storing);
        if (!boundary->timeline.has_value()) continue;
        EXPECT_EQ(**boundary->timeline, timeline);
        adopted_at[static_cast<size_t>(rank)] = number;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_GE(adopted_at[0], 3);
  EXPECT_EQ(adopted_at[0], adopted_at[1]);
}

TEST_F(JobControlTest, EveryRankLearnsOfTheRankThatFailedAndItsReason) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto collective = CreateGloo({.rank = rank, .world = 2, .rendezvous = rendezvous_});
      ASSERT_TRUE(collective.ok()) << collective.status();
      const TestRank self = Connect(**collective);
      JobControl* const control = self.control.get();
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

TEST_F(JobControlTest, AnInvalidTimelineIsReturnedWithItsRevisionAndEndsNothing) {
  host_->SetCommand(CommandOf({RevisionAt(3, 7)}));  // the first does not begin at step 0
  const std::unique_ptr<Collective> collective = CreateLocal();
  const TestRank self = Connect(*collective);
  JobControl* const control = self.control.get();
  const auto boundary = control->Agree(false);
  ASSERT_TRUE(boundary.ok()) << boundary.status();
  ASSERT_TRUE(boundary->timeline.has_value());
  EXPECT_FALSE(boundary->timeline->ok());
  EXPECT_EQ(boundary->revision, 3);
}

}  // namespace
}  // namespace nibble
