#include "worker/trainer/link/daemon_link.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <limits>
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
  // Until the host has heard what `done` is about.
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

TEST(LinkMessageTest, NewsSurvivesTheWireAlsoWithoutAFiniteLoss) {
  const RankNews news = {.doing = RankNews::Doing::kStanding,
                         .next_step = 12,
                         .waiting_in = "all-gather",
                         .memory_bytes = int64_t{1} << 40,
                         .has_sample = true,
                         .step = 11,
                         .tokens = 99,
                         .loss = std::numeric_limits<double>::infinity(),
                         .gradient_norm = 0.1,
                         .learning_rate = 1e-300,
                         .revision = 2,
                         .updated = false,
                         .revision_first_step = 7,
                         .checkpoint_request = 3};
  const auto decoded = DecodeNews(EncodeNews(news));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, news);
}

TEST(LinkMessageTest, AWrongFieldIsNamed) {
  EXPECT_EQ(DecodeControl("{\"command\":7}").status().message(),
            "control.command: 7 is not in [0, 2]");
  EXPECT_EQ(DecodeHello("{\"rank\":0}").status().message(), "hello.attempt: missing");
  EXPECT_EQ(DecodeNews("[").status().message(), "news: no object");
}

TEST(LinkMessageTest, FramesAreCutAtAnyPlace) {
  const std::string stream = FrameOf("{}") + FrameOf("{\"a\":1}");
  FrameReader reader;
  std::vector<std::string> messages;
  for (const char byte : stream) {
    reader.Append({&byte, 1});
    const auto next = reader.Next();
    ASSERT_TRUE(next.ok());
    if (next->has_value()) messages.push_back(**next);
  }
  EXPECT_EQ(messages, (std::vector<std::string>{"{}", "{\"a\":1}"}));
  reader.Append("HTTP/1.1 200 OK");
  EXPECT_EQ(reader.Next().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble
