#include "server/controller/watch_hub.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

std::vector<WatchHub::News> OneEach(const std::vector<std::string>& jobs) {
  std::vector<WatchHub::News> news;
  for (const std::string& job : jobs) {
    news.emplace_back().job = job;
    news.back().message.mutable_job()->set_id(job);
  }
  return news;
}

std::shared_ptr<Watch> Open(WatchHub& hub, const v1::WatchJobsRequest& request) {
  auto watch = hub.Open(request, {}, nullptr);
  EXPECT_EQ(watch.status(), absl::OkStatus());
  return *watch;
}

TEST(WatchHubTest, OnlyTheLastMessageOfAnUpdateHasItsToken) {
  WatchHub hub({});
  const auto watch = Open(hub, {});
  hub.Publish(OneEach({"a", "b"}), 4, 5);
  EXPECT_EQ(watch->Next()->resume_token(), "s4");
  EXPECT_EQ(watch->Next()->resume_token(), "s5");
  EXPECT_FALSE(watch->Next().has_value());
}

TEST(WatchHubTest, AWatchOfSomeJobsHearsOfNoOthers) {
  WatchHub hub({});
  v1::WatchJobsRequest request;
  request.add_jobs("b");
  const auto watch = Open(hub, request);
  EXPECT_FALSE(hub.IsWatched("a"));
  EXPECT_TRUE(hub.IsWatched("b"));
  hub.Publish(OneEach({"a", "b", "c"}), 0, 1);
  EXPECT_EQ(watch->Next()->job().id(), "b");
  EXPECT_FALSE(watch->Next().has_value());
}

TEST(WatchHubTest, SamplesAreForThoseWhoAskedForThem) {
  WatchHub hub({});
  v1::WatchJobsRequest request;
  const auto without = Open(hub, request);
  request.set_with_samples(true);
  const auto with = Open(hub, request);
  std::vector<WatchHub::News> news(1);
  news[0].job = "a";
  news[0].message.mutable_sample()->set_job("a");
  hub.Publish(std::move(news), 1, 1);
  EXPECT_FALSE(without->Next().has_value());
  EXPECT_TRUE(with->Next()->has_sample());
}

TEST(WatchHubTest, ASlowWatchIsCutAndKeepsUpNobodyElse) {
  WatchHub hub({.buffered = 2});
  const auto slow = Open(hub, {});
  const auto quick = Open(hub, {});
  for (int64_t i = 0; i < 3; ++i) {
    hub.Publish(OneEach({"a"}), i, i + 1);
    EXPECT_TRUE(quick->Next().has_value());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(slow->status()));
  EXPECT_FALSE(slow->Next().has_value());
  EXPECT_EQ(quick->status(), absl::OkStatus());
}

TEST(WatchHubTest, AWatchIsCutByTheBytesThatItDoesNotRead) {
  const size_t each = [] {
    auto news = OneEach({"a"});
    news[0].message.set_resume_token("s0");
    return news[0].message.ByteSizeLong();
  }();
  WatchHub hub({.buffered_bytes = 2 * each});
  const auto slow = Open(hub, {});
  hub.Publish(OneEach({"a"}), 0, 1);
  hub.Publish(OneEach({"a"}), 1, 2);
  EXPECT_EQ(slow->status(), absl::OkStatus());
  hub.Publish(OneEach({"a"}), 2, 3);
  EXPECT_TRUE(absl::IsResourceExhausted(slow->status()));
}

TEST(WatchHubTest, BeginningsThatNobodyReadsLeaveNoRoomForFurtherOnes) {
  std::deque<v1::WatchJobsResponse> beginning(1);
  beginning[0].mutable_job()->set_id("a");
  WatchHub hub({.beginning_bytes = 2 * beginning[0].ByteSizeLong()});
  auto first = hub.Open({}, beginning, nullptr);
  auto second = hub.Open({}, beginning, nullptr);
  ASSERT_EQ(second.status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(hub.Open({}, beginning, nullptr).status()));
  EXPECT_TRUE((*first)->Next().has_value());
  EXPECT_EQ(hub.Open({}, beginning, nullptr).status(), absl::OkStatus());
}

TEST(WatchHubTest, OneThatReadsNothingForTooLongIsCutAndOneThatHasReadAllIsNot) {
  WatchHub hub({.stall_ms = 100});
  int notified = 0;
  auto stalled = hub.Open({}, {}, [&notified] { ++notified; });
  ASSERT_EQ(stalled.status(), absl::OkStatus());
  const auto reads = Open(hub, {});
  hub.Publish(OneEach({"a"}), 0, 1);
  EXPECT_TRUE(reads->Next().has_value());
  hub.CutStalled(1000);
  hub.CutStalled(1100);
  EXPECT_EQ((*stalled)->status(), absl::OkStatus());
  notified = 0;
  hub.CutStalled(1101);
  EXPECT_TRUE(absl::IsResourceExhausted((*stalled)->status()));
  EXPECT_EQ(notified, 1);
  EXPECT_EQ(reads->status(), absl::OkStatus());
}

TEST(WatchHubTest, AClosedWatchIsToldNothing) {
  WatchHub hub({});
  int notified = 0;
  auto watch = hub.Open({}, {}, [&notified] { ++notified; });
  ASSERT_EQ(watch.status(), absl::OkStatus());
  hub.Publish(OneEach({"a"}), 0, 1);
  EXPECT_EQ(notified, 1);
  hub.Close(*watch);
  hub.Publish(OneEach({"a"}), 1, 2);
  EXPECT_EQ(notified, 1);
}

TEST(WatchHubTest, AWaitThatWasEndedIsNotAnswered) {
  WatchHub hub({.waits = 1});
  int answered = 0;
  const auto done = [&answered](const absl::Status&) { ++answered; };
  const auto number = hub.Wait("a", {}, done);
  ASSERT_EQ(number.status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(hub.Wait("b", {}, done).status()));
  EXPECT_TRUE(hub.EndWait(*number));
  EXPECT_FALSE(hub.EndWait(*number));
  hub.Moved("a", v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(answered, 0);
  EXPECT_EQ(hub.Wait("b", {}, done).status(), absl::OkStatus());
  hub.Moved("b", v1::JOB_STATE_RUNNING);
  EXPECT_EQ(answered, 0);
  hub.Moved("b", v1::JOB_STATE_FAILED);
  EXPECT_EQ(answered, 1);
}

TEST(WatchHubTest, ATokenIsOneOfOursOrRefused) {
  EXPECT_EQ(*ParseResumeToken(ResumeToken(41)), 41);
  for (const char* token : {"", "41", "s", "s-1", "s1x", "x1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseResumeToken(token).status())) << token;
  }
}

}  // namespace
}  // namespace nibble
