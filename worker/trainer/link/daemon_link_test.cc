#include "worker/trainer/link/daemon_link.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/trainer/link/link_host.h"
#include "worker/trainer/link/link_message.h"

namespace nibble {
namespace {

constexpr std::chrono::seconds kPatience(20);

class DaemonLinkTest : public testing::Test {
 protected:
  DaemonLinkTest() {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    auto host = LinkHost::Start({.address = directory_ + "/link",
                                 .attempt = 3,
                                 .first_rank = 0,
                                 .ranks = 2,
                                 .clock = [this] { return now_.load(); },
                                 .changed =
                                     [this] {
                                       { const std::lock_guard<std::mutex> lock(mutex_); }
                                       heard_.notify_all();
                                     }});
    EXPECT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
  }
  ~DaemonLinkTest() override {
    host_.reset();
    std::filesystem::remove_all(directory_);
  }

  std::unique_ptr<DaemonLink> Connect(int32_t rank, int64_t attempt = 3) {
    auto link =
        DaemonLink::Connect({.address = host_->address(), .rank = rank, .attempt = attempt});
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }
  // Waits until `done` holds for the host's ranks.
  template <class Done>
  bool Await(Done done) {
    std::unique_lock<std::mutex> lock(mutex_);
    return heard_.wait_for(lock, kPatience, [&] { return done(host_->Ranks()); });
  }
  void MakeStep(DaemonLink& link, int64_t next_step, int64_t took_ms) {
    now_ += took_ms;
    link.Report({.doing = RankNews::Doing::kSteps,
                 .next_step = next_step,
                 .has_sample = true,
                 .step = next_step - 1,
                 .loss = 2.5});
    EXPECT_TRUE(Await([&](const auto& ranks) {
      const auto at = ranks.find(0);
      return at != ranks.end() && at->second.news.next_step == next_step;
    }));
  }

  std::string directory_ = "/tmp/nibble-link-XXXXXX";  // sockets have short names
  std::atomic<int64_t> now_ = 1000;
  std::mutex mutex_;
  std::condition_variable heard_;
  std::unique_ptr<LinkHost> host_;
};

ControlWord AwaitWord(DaemonLink& link, const ControlWord& wanted) {
  ControlWord word;
  for (int i = 0; i < 20 && word != wanted; ++i) {
    const auto polled = link.WaitForChange(std::chrono::seconds(1));
    EXPECT_TRUE(polled.ok()) << polled.status();
    if (polled.ok()) word = *polled;
  }
  return word;
}

TEST_F(DaemonLinkTest, WithoutAWordTheJobRuns) {
  const auto link = Connect(0);
  const auto word = link->Poll();
  ASSERT_TRUE(word.ok()) << word.status();
  EXPECT_EQ(*word, ControlWord());
}

TEST_F(DaemonLinkTest, WhatWasAskedBeforeRankZeroCameIsToldToIt) {
  const ControlWord asked = {.command = ControlWord::Command::kPause, .checkpoint_request = 4};
  host_->Ask(asked);
  const auto link = Connect(0);
  EXPECT_EQ(AwaitWord(*link, asked), asked);
}

TEST_F(DaemonLinkTest, ALargeTimelineArrivesWhole) {
  const auto link = Connect(0);
  const ControlWord asked = {.timeline_revision = 9,
                             .timeline = "{\"x\":\"" + std::string(3 << 20, 'q') + "\"}"};
  host_->Ask(asked);
  EXPECT_EQ(AwaitWord(*link, asked), asked);
}

TEST_F(DaemonLinkTest, OnlyRankZeroIsTold) {
  const auto zero = Connect(0);
  const auto one = Connect(1);
  const ControlWord asked = {.command = ControlWord::Command::kStop};
  host_->Ask(asked);
  EXPECT_EQ(AwaitWord(*zero, asked), asked);
  const auto word = one->Poll();
  ASSERT_TRUE(word.ok()) << word.status();
  EXPECT_EQ(*word, ControlWord());
}

TEST_F(DaemonLinkTest, StepsAndTheirMedianAreKnown) {
  const auto link = Connect(0);
  ASSERT_TRUE(Await([](const auto& ranks) { return ranks.contains(0); }));
  MakeStep(*link, 1, 5000);  // the first does not count
  for (int64_t step = 2; step <= 6; ++step) MakeStep(*link, step, step == 4 ? 900 : 100);
  const auto ranks = host_->TakeRanks();
  const LinkHost::Rank& rank = ranks.at(0);
  EXPECT_EQ(rank.median_step_ms, 100);
  EXPECT_EQ(rank.step_at_ms, now_.load());
  EXPECT_EQ(rank.pid, getpid());
  ASSERT_EQ(rank.samples.size(), 6u);
  EXPECT_EQ(rank.samples.back().step, 5);
  EXPECT_TRUE(host_->Ranks().at(0).samples.empty());
}

TEST_F(DaemonLinkTest, ARankOfAnotherAttemptIsHungUpOn) {
  const auto link = Connect(0, 2);
  absl::Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    status = link->WaitForChange(std::chrono::seconds(1)).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_FALSE(host_->Ranks().contains(0));
}

TEST_F(DaemonLinkTest, ARankThatIsGoneIsNoLongerConnected) {
  auto link = Connect(1);
  ASSERT_TRUE(Await([](const auto& ranks) { return ranks.contains(1); }));
  link.reset();
  EXPECT_TRUE(Await([](const auto& ranks) { return !ranks.at(1).connected; }));
}

TEST_F(DaemonLinkTest, ADaemonThatIsGoneIsAnErrorOfPoll) {
  const auto link = Connect(0);
  host_.reset();
  absl::Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    status = link->WaitForChange(std::chrono::seconds(1)).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_FALSE(link->Poll().ok());
  link->Report({.next_step = 1});  // changes nothing
}

class WaitingPageTest : public testing::Test {
 protected:
  WaitingPageTest() { EXPECT_NE(mkdtemp(directory_.data()), nullptr); }
  ~WaitingPageTest() override { std::filesystem::remove_all(directory_); }
  std::string Path() const { return WaitingPage::PathOf(directory_ + "/1.link", 3); }

  std::string directory_ = testing::TempDir() + "/page-XXXXXX";
};

TEST_F(WaitingPageTest, TheDaemonReadsWhereTheRankStands) {
  auto rank = WaitingPage::Create(Path());
  ASSERT_TRUE(rank.ok()) << rank.status();
  auto daemon = WaitingPage::Open(Path());
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  EXPECT_EQ((*daemon)->Read(), "");
  (*rank)->Enter("ReduceScatter", 17);
  EXPECT_EQ((*daemon)->Read(), "ReduceScatter #17");
  (*rank)->Leave();
  EXPECT_EQ((*daemon)->Read(), "");
  (*rank)->Enter("Barrier", 18);
  EXPECT_EQ((*daemon)->Read(), "Barrier #18") << "nothing of a longer name is left";
}

TEST_F(WaitingPageTest, WhatAKilledRankStoodInCanStillBeRead) {
  auto rank = WaitingPage::Create(Path());
  ASSERT_TRUE(rank.ok()) << rank.status();
  auto daemon = WaitingPage::Open(Path());
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const pid_t child = fork();
  if (child == 0) {
    (*rank)->Enter("AllGather", 5);
    (void)raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ((*daemon)->Read(), "AllGather #5");
}

TEST_F(WaitingPageTest, ARankWithoutAPageIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(WaitingPage::Open(Path()).status()));
}

TEST_F(WaitingPageTest, ALongNameIsCut) {
  auto rank = WaitingPage::Create(Path());
  ASSERT_TRUE(rank.ok()) << rank.status();
  (*rank)->Enter("AnOperationWithANameOfFortyCharactersOrSo", 1);
  EXPECT_EQ((*rank)->Read(), "AnOperationWithANameOfFortyChar #1");
}

}  // namespace
}  // namespace nibble
