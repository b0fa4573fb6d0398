#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/watch_hub.h"

namespace nibble {
namespace {

std::vector<WatchLog::Entry> OneEach(const std::vector<std::string>& jobs) {
  std::vector<WatchLog::Entry> entries;
  for (const std::string& job : jobs) {
    entries.emplace_back().job = job;
    entries.back().message.mutable_job()->set_id(job);
  }
  return entries;
}

std::shared_ptr<Watch> Open(WatchHub& hub, const v1::WatchJobsRequest& request,
                            Watch::Begin begin = nullptr) {
  auto watch = hub.Open(request, std::move(begin), nullptr);
  EXPECT_EQ(watch.status(), absl::OkStatus());
  return *watch;
}

// A beginning with jobs "0", "1", … of a snapshot of this update.
Watch::Begin BeginWith(int jobs, int64_t sequence, std::shared_ptr<const void> snapshot = nullptr) {
  return [=] {
    return WatchBeginning{
        sequence, [=, next = 0]() mutable -> absl::StatusOr<v1::WatchJobsResponse> {
          v1::WatchJobsResponse message;
          if (next == jobs) {
            message.set_caught_up(snapshot == nullptr || snapshot.use_count() > 0);
          } else {
            message.mutable_job()->set_id(std::to_string(next++));
          }
          return message;
        }};
  };
}

// A reader in another thread, like a stream: takes a message per turn and asks for the next.
class Reader {
 public:
  Reader(WatchHub& hub, Watch::Begin begin) : hub_(hub) {
    auto opened = hub.Open({}, std::move(begin), [this] { Take(); });
    EXPECT_EQ(opened.status(), absl::OkStatus());
    watch_ = *std::move(opened);
    hub.RequestTurn(watch_);
  }
  ~Reader() {
    hub_.Close(watch_);
    hub_.Settle();
  }

  // Waits until this many were taken.
  std::vector<std::string> Wait(size_t count) {
    MutexLock lock(&mutex_);
    while (taken_.size() < count) changed_.Wait(&mutex_);
    return taken_;
  }

 private:
  void Take() {
    const Watch::Message message = watch_->Next();
    if (message != nullptr) {
      MutexLock lock(&mutex_);
      taken_.push_back(message->has_job() ? message->job().id() : "caught up");
      changed_.SignalAll();
    }
    hub_.RequestTurn(watch_);
  }

  WatchHub& hub_;
  std::shared_ptr<Watch> watch_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> taken_ ABSL_GUARDED_BY(mutex_);
};

TEST(WatchHubTest, OnlyTheLastMessageOfAnUpdateHasItsToken) {
  WatchHub hub({});
  const auto watch = Open(hub, {});
  hub.Publish(5, OneEach({"a", "b"}));
  EXPECT_EQ(watch->Next()->resume_token(), "s4:~");
  EXPECT_EQ(watch->Next()->resume_token(), "s5");
  EXPECT_EQ(watch->Next(), nullptr);
}

TEST(WatchHubTest, ASampleNeverHasTheTokenOfAnUpdateNotYetPublished) {
  WatchHub hub({});
  v1::WatchJobsRequest request;
  request.set_with_samples(true);
  const auto watch = Open(hub, request);
  const auto sample = [&hub] {
    std::vector<WatchLog::Entry> entries(1);
    entries[0].job = "a";
    entries[0].message.mutable_sample()->set_job("a");
    hub.PublishSamples(std::move(entries));
  };
  hub.Publish(5, {});
  sample();
  hub.Publish(6, OneEach({"a"}));
  sample();
  EXPECT_EQ(watch->Next()->resume_token(), "s5");
  EXPECT_EQ(watch->Next()->resume_token(), "s6");
  EXPECT_EQ(watch->Next()->resume_token(), "s6");
}

TEST(WatchHubTest, AWatchOfSomeJobsGetsNoOthers) {
  WatchHub hub({});
  v1::WatchJobsRequest request;
  request.add_jobs("b");
  const auto watch = Open(hub, request);
  EXPECT_FALSE(hub.IsWatched("a"));
  EXPECT_TRUE(hub.IsWatched("b"));
  hub.Publish(1, OneEach({"a", "b", "c"}));
  EXPECT_EQ(watch->Next()->job().id(), "b");
  EXPECT_EQ(watch->Next(), nullptr);
  hub.Close(watch);
  EXPECT_FALSE(hub.IsWatched("b"));
}

TEST(WatchHubTest, OnlyWatchesWithSamplesGetSamples) {
  WatchHub hub({});
  v1::WatchJobsRequest request;
  const auto without = Open(hub, request);
  request.set_with_samples(true);
  const auto with = Open(hub, request);
  std::vector<WatchLog::Entry> entries(1);
  entries[0].job = "a";
  entries[0].message.mutable_sample()->set_job("a");
  hub.PublishSamples(std::move(entries));
  EXPECT_EQ(without->Next(), nullptr);
  EXPECT_TRUE(with->Next()->has_sample());
}

TEST(WatchHubTest, UpdatesAfterTheSnapshotFollowTheBeginningAndEarlierOnesDoNot) {
  WatchHub hub({});
  const auto watch = Open(hub, {}, BeginWith(2, 7));
  EXPECT_EQ(watch->Next()->job().id(), "0");
  // Published while it reads: 7 is in its snapshot.
  hub.Publish(7, OneEach({"seven"}));
  hub.Publish(8, OneEach({"eight"}));
  EXPECT_EQ(watch->Next()->job().id(), "1");
  EXPECT_TRUE(watch->Next()->caught_up());
  EXPECT_EQ(watch->Next()->job().id(), "eight");
  EXPECT_EQ(watch->Next(), nullptr);
}

TEST(WatchHubTest, OnlyAWatchThatIsReadingItsBeginningKeepsASnapshot) {
  WatchHub hub({});
  int begun = 0;
  const auto snapshot = std::make_shared<int>(1);
  const auto watch = Open(hub, {}, [&begun, &snapshot] {
    ++begun;
    return BeginWith(1, 1, snapshot)();
  });
  EXPECT_EQ(begun, 0);
  EXPECT_NE(watch->Next(), nullptr);
  EXPECT_EQ(begun, 1);
  EXPECT_GT(snapshot.use_count(), 1);
  EXPECT_TRUE(watch->Next()->caught_up());
  EXPECT_EQ(snapshot.use_count(), 1);
}

TEST(WatchHubTest, ASlowWatchIsCutAndDelaysNoOther) {
  WatchHub hub({.kept = 2});
  const auto slow = Open(hub, {});
  const auto quick = Open(hub, {});
  for (int64_t i = 0; i < 3; ++i) {
    hub.Publish(i + 1, OneEach({"a"}));
    EXPECT_NE(quick->Next(), nullptr);
  }
  EXPECT_EQ(slow->Next(), nullptr);
  EXPECT_TRUE(absl::IsResourceExhausted(slow->status()));
  EXPECT_EQ(quick->status(), absl::OkStatus());
}

TEST(WatchHubTest, AWatchThatReadsItsBeginningTooSlowlyIsCutAndFreesItsSnapshot) {
  WatchHub hub({.kept = 2});
  const auto snapshot = std::make_shared<int>(1);
  const auto slow = Open(hub, {}, BeginWith(5, 0, snapshot));
  EXPECT_NE(slow->Next(), nullptr);
  for (int64_t i = 1; i <= 3; ++i) hub.Publish(i, OneEach({"a"}));
  hub.CutStalled(1000);
  EXPECT_TRUE(absl::IsResourceExhausted(slow->status()));
  EXPECT_EQ(snapshot.use_count(), 1);
}

TEST(WatchHubTest, TheLogKeepsMessagesOnceAndWithinItsBytes) {
  WatchLog log(1000, 10'000);
  for (int64_t i = 1; i <= 5000; ++i) {
    auto entries = OneEach({"a"});
    entries[0].message.mutable_job()->set_state_reason(std::string(100, 'x'));
    log.Append(i, std::move(entries));
  }
  EXPECT_EQ(log.end(), 5000);
  EXPECT_TRUE(absl::IsResourceExhausted(log.From(0, 1).status()));
  const auto last = log.From(4999, 10);
  ASSERT_EQ(last.status(), absl::OkStatus());
  const size_t each = last->at(0)->message.ByteSizeLong();
  const auto first = static_cast<int64_t>(5000 - 10'000 / each);
  EXPECT_EQ(log.From(first, 1).status(), absl::OkStatus());
  EXPECT_FALSE(log.From(first - 1, 1).ok());
  std::weak_ptr<const WatchLog::Entry> entry = last->at(0);
  log.TakeAll();
  EXPECT_EQ(entry.use_count(), 1) << "of the test alone";
}

TEST(WatchHubTest, AStalledWatchIsCutAndOneThatHasReadEverythingIsNot) {
  WatchHub hub({.stall_ms = 100});
  const auto stalled = Open(hub, {});
  const auto reads = Open(hub, {});
  const auto begins = Open(hub, {}, BeginWith(1, 0));
  hub.Publish(1, OneEach({"a"}));
  EXPECT_NE(reads->Next(), nullptr);
  hub.CutStalled(1000);
  hub.CutStalled(1100);
  EXPECT_EQ(stalled->status(), absl::OkStatus());
  hub.CutStalled(1101);
  EXPECT_TRUE(absl::IsResourceExhausted(stalled->status()));
  EXPECT_TRUE(absl::IsResourceExhausted(begins->status()));
  EXPECT_EQ(reads->status(), absl::OkStatus());
}

TEST(WatchHubTest, AWatchThatIsCutIsNotified) {
  std::promise<void> notified;  // outlives the hub, whose thread uses it
  WatchHub hub({.stall_ms = 100});
  auto stalled = hub.Open({}, nullptr, [&notified] { notified.set_value(); });
  ASSERT_EQ(stalled.status(), absl::OkStatus());
  hub.Publish(1, OneEach({"a"}));
  hub.CutStalled(1000);
  hub.CutStalled(1101);
  notified.get_future().wait();
  EXPECT_TRUE(absl::IsResourceExhausted((*stalled)->status()));
  hub.Close(*stalled);
}

TEST(WatchHubTest, EveryReaderGetsItsBeginningThenUpdatesUntilItCloses) {
  WatchHub hub({});
  Reader first(hub, BeginWith(3, 0));
  Reader second(hub, BeginWith(2, 0));
  EXPECT_EQ(first.Wait(4), (std::vector<std::string>{"0", "1", "2", "caught up"}));
  EXPECT_EQ(second.Wait(3), (std::vector<std::string>{"0", "1", "caught up"}));
  hub.Publish(1, OneEach({"a"}));
  EXPECT_EQ(first.Wait(5).back(), "a");
  {
    Reader third(hub, nullptr);
    hub.Publish(2, OneEach({"b"}));
    EXPECT_EQ(third.Wait(1), std::vector<std::string>{"b"});
  }
  hub.Publish(3, OneEach({"c"}));
  EXPECT_EQ(second.Wait(6).back(), "c");
  EXPECT_EQ(hub.Count().watches, 2u);
}

TEST(WatchHubTest, StalledBeginningsDoNotKeepOtherWatchesFromBeginning) {
  WatchHub hub({});
  // More watches than may read at a time; each takes one message and asks for no more.
  std::vector<std::shared_ptr<Watch>> slow;
  for (int i = 0; i < 40; ++i) {
    auto taken = std::make_shared<std::promise<void>>();
    auto self = std::make_shared<std::weak_ptr<Watch>>();
    auto watch = hub.Open({}, BeginWith(5, 0), [taken, self] {
      if (const auto watch = self->lock()) watch->Next();
      taken->set_value();
    });
    ASSERT_EQ(watch.status(), absl::OkStatus());
    *self = *watch;
    slow.push_back(*watch);
    hub.RequestTurn(*watch);
    // Slow watches lose their place at the second check.
    for (int64_t look = 1; look <= 2; ++look) hub.CutStalled((2 * i + look) * 1000);
    taken->get_future().wait();
  }
  Reader last(hub, BeginWith(2, 0));
  for (int64_t look = 1; look <= 2; ++look) hub.CutStalled((100 + look) * 1000);
  EXPECT_EQ(last.Wait(3), (std::vector<std::string>{"0", "1", "caught up"}));
  for (const auto& watch : slow) hub.Close(watch);
}

TEST(WatchHubTest, NothingWaitsForASlowReader) {
  WatchHub hub({});
  std::promise<void> takes;
  std::promise<void> done;
  auto slow = hub.Open({}, nullptr, [&] {
    takes.set_value();
    done.get_future().wait();
  });
  ASSERT_EQ(slow.status(), absl::OkStatus());
  hub.RequestTurn(*slow);
  hub.Publish(1, OneEach({"a"}));
  takes.get_future().wait();
  // The reader blocks the hub's thread; changes, opens, waits and cuts do not block.
  for (int64_t i = 2; i < 100; ++i) hub.Publish(i, OneEach({"a"}));
  const auto other = Open(hub, {}, BeginWith(1, 99));
  EXPECT_NE(other->Next(), nullptr);
  EXPECT_EQ(hub.Wait("a", {}, [](const absl::Status&) {}).status(), absl::OkStatus());
  hub.EndWaits("a", v1::JOB_STATE_SUCCEEDED);
  hub.CutStalled(1000);
  hub.Close(other);
  done.set_value();
  hub.Settle();
  hub.Close(*slow);
}

TEST(WatchHubTest, AnEndedWaitIsNotAnswered) {
  WatchHub hub({.waits = 1});
  int answered = 0;
  const auto done = [&answered](const absl::Status&) { ++answered; };
  const auto number = hub.Wait("a", {}, done);
  ASSERT_EQ(number.status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(hub.Wait("b", {}, done).status()));
  EXPECT_TRUE(hub.EndWait(*number));
  EXPECT_FALSE(hub.EndWait(*number));
  hub.EndWaits("a", v1::JOB_STATE_SUCCEEDED);
  hub.Settle();
  EXPECT_EQ(answered, 0);
  EXPECT_EQ(hub.Wait("b", {}, done).status(), absl::OkStatus());
  hub.EndWaits("b", v1::JOB_STATE_RUNNING);
  hub.Settle();
  EXPECT_EQ(answered, 0);
  hub.EndWaits("b", v1::JOB_STATE_FAILED);
  hub.Settle();
  EXPECT_EQ(answered, 1);
}

TEST(WatchHubTest, WhatAnEndedWaitOwnsMayCallTheHubWhenItIsDestroyed) {
  WatchHub hub({});
  size_t open = 1;
  std::shared_ptr<void> owned(nullptr, [&](void*) { open = hub.Count().waits; });
  const auto number = hub.Wait("a", {}, [owned](const absl::Status&) {});
  ASSERT_EQ(number.status(), absl::OkStatus());
  owned.reset();
  EXPECT_TRUE(hub.EndWait(*number));
  EXPECT_EQ(open, 0u);
}

TEST(WatchHubTest, InvalidResumeTokensAreRefused) {
  v1::StoreIdentity store;
  store.set_id("27c4934527c5ca44567c36dd41a7ec8e");
  store.set_epoch(2);
  store.set_epoch_id("9" + std::string(31, '0'));
  const std::string token_of_it = ResumeToken(StoreMark(store), 41);
  EXPECT_EQ(token_of_it, "27c49345.2.90000000.s41");
  EXPECT_EQ(ParseResumeToken(token_of_it)->store, StoreMark(store));
  EXPECT_EQ(ParseResumeToken(token_of_it)->sequence, 41);
  EXPECT_EQ(ParseResumeToken(ResumeToken("", 7))->sequence, 7);
  EXPECT_EQ(ParseResumeToken(ResumeToken("", 7))->event, "");
  EXPECT_EQ(ParseResumeToken(ResumeToken("", 7, "a/1"))->sequence, 7);
  EXPECT_EQ(ParseResumeToken(ResumeToken("", 7, "a/1"))->event, "a/1");
  for (const char* token :
       {"", "41", "s", "s-1", "s1x", "x1", "x.1.s4", "27c49345.2.41", "s4:", "s:a/1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseResumeToken(token).status())) << token;
  }
}

}  // namespace
}  // namespace nibble
