// Notifications from a job's event to a real receiver on loopback, through restarts.
#include "server/notify/notifier.h"

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/controller/testing.h"
#include "server/notify/post_plan.h"
#include "server/notify/testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

AllowList Loopback() { return *AllowList::Parse({"127.0.0.1"}); }

ControllerOptions WithLoopback() {
  ControllerOptions options;
  options.cluster = "lab";
  options.may_post = [](const std::string& url) { return Loopback().MayPost(url); };
  return options;
}

class NotifierTest : public testing::Test {
 protected:
  NotifierTest() : coordinator_(WithLoopback()) {}

  void Start(Notifier::Options options = {.allow = Loopback()}) {
    options.plan.backoff = {std::chrono::seconds(1), std::chrono::seconds(1), 1};
    options.plan.give_up_ms = 10'000;
    options.limit = limit_;
    notifier_ = std::make_unique<Notifier>(coordinator_.controller(), options);
  }
  void Restart() {
    notifier_.reset();
    coordinator_.Restart();
    Start();
  }
  std::string Submit(const std::vector<std::string>& urls, const std::string& on = "submitted") {
    std::string notify = "notify:\n";
    for (const std::string& url : urls) {
      absl::StrAppend(&notify, "  - {url: \"", url, "\", on: [", on, "]}\n");
    }
    return coordinator_.Submit(1, "train", notify);
  }
  v1::NotifyTarget Target(const std::string& job, int index = 0) {
    return coordinator_.Job(job).notify(index);
  }
  // Ticks until it holds, each tick a step of the clock.
  template <class Holds>
  bool Await(Holds holds, int64_t step_ms = 0) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      notifier_->Tick();
      if (holds()) return true;
      coordinator_.clock.Advance(step_ms);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }
  bool AwaitDelivered(const std::string& job, int64_t events, int index = 0, int64_t step_ms = 0) {
    return Await([&] { return Target(job, index).delivered() >= events; }, step_ms);
  }

  std::chrono::milliseconds limit_{20'000};
  TestCoordinator coordinator_;
  std::unique_ptr<Notifier> notifier_;
};

TEST_F(NotifierTest, AnEventReachesItsReceiver) {
  TestReceiver receiver;
  Start();
  const std::string job = Submit({receiver.Url()}, "submitted, paused");
  ASSERT_TRUE(AwaitDelivered(job, 1));
  v1::PauseJobRequest pause;
  pause.set_job(job);
  pause.set_reason("lunch");
  ASSERT_EQ(coordinator_.Do<v1::PauseJobResponse>(pause).status(), absl::OkStatus());
  ASSERT_TRUE(AwaitDelivered(job, 2));
  const auto body = nlohmann::json::parse(TestReceiver::BodyOf(receiver.Request(1)));
  EXPECT_EQ(body["job"], job);
  EXPECT_EQ(body["event"], "paused");
  EXPECT_EQ(body["cluster"], "lab");
  EXPECT_THAT(body["reason"].get<std::string>(), HasSubstr("lunch"));
  EXPECT_EQ(receiver.count(), 2u);
}

TEST_F(NotifierTest, AReceiverThatAnswers500IsRetriedAfterTheBackOff) {
  TestReceiver receiver;
  receiver.Script({TestReceiver::kError, TestReceiver::kOk});
  Start();
  const std::string job = Submit({receiver.Url()});
  ASSERT_TRUE(Await([&] { return receiver.count() == 1; }));
  // No time passes: nothing is tried.
  EXPECT_EQ(Target(job).delivered(), 0);
  ASSERT_TRUE(AwaitDelivered(job, 1, 0, 200));
  EXPECT_EQ(receiver.count(), 2u);
  EXPECT_EQ(TestReceiver::BodyOf(receiver.Request(0)), TestReceiver::BodyOf(receiver.Request(1)));
}

TEST_F(NotifierTest, AHangingReceiverDelaysNeitherOtherPostsNorChangesNorShutdown) {
  TestReceiver hangs, receiver;
  hangs.Script({TestReceiver::kHang, TestReceiver::kHang, TestReceiver::kHang});
  Start();
  const std::string job = Submit({hangs.Url(), receiver.Url()});
  ASSERT_TRUE(AwaitDelivered(job, 1, 1));
  hangs.Request(0);
  EXPECT_FALSE(Submit({}).empty());
  const auto begin = std::chrono::steady_clock::now();
  notifier_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, limit_ / 2);
  EXPECT_EQ(Target(job).given_up(), 0);
}

TEST_F(NotifierTest, AHangingReceiverIsEventuallyGivenUp) {
  TestReceiver hangs;
  hangs.Script(std::vector<std::string>(1000, TestReceiver::kHang));
  limit_ = std::chrono::milliseconds(20);
  Start();
  const std::string job = Submit({hangs.Url()});
  ASSERT_TRUE(Await([&] { return Target(job).given_up() == 1; }, 500));
  EXPECT_EQ(Target(job).problem(), "no answer within 0.02 s");
  EXPECT_EQ(Target(job).delivered(), 0);
}

TEST_F(NotifierTest, ARedirectIsGivenUpAndNotFollowed) {
  TestReceiver elsewhere, receiver;
  receiver.Script(
      {absl::StrCat("HTTP/1.1 307 Look There\r\nLocation: ", elsewhere.Url(), "\r\n\r\n")});
  Start();
  const std::string job = Submit({receiver.Url()});
  ASSERT_TRUE(Await([&] { return Target(job).given_up() == 1; }));
  EXPECT_EQ(Target(job).problem(), "the receiver answered 307; redirects are not followed");
  EXPECT_EQ(elsewhere.count(), 0u);
}

TEST_F(NotifierTest, AfterARestartOnlyUndeliveredEventsArePosted) {
  TestReceiver receiver;
  Start();
  const std::string done = Submit({receiver.Url("/done")});
  ASSERT_TRUE(AwaitDelivered(done, 1));
  receiver.Script({TestReceiver::kError});
  const std::string waits = Submit({receiver.Url("/waits")});
  ASSERT_TRUE(Await([&] { return receiver.count() == 2; }));
  Restart();
  ASSERT_TRUE(AwaitDelivered(waits, 1));
  EXPECT_EQ(receiver.count(), 3u);
  EXPECT_EQ(TestReceiver::BodyOf(receiver.Request(1)), TestReceiver::BodyOf(receiver.Request(2)));
  EXPECT_EQ(Target(done).delivered(), 1);
}

TEST_F(NotifierTest, WithAFailedStoreNothingIsPosted) {
  TestReceiver receiver;
  const std::string job = Submit({receiver.Url()});
  coordinator_.store().FailAppend(
      static_cast<int64_t>(coordinator_.store().Info().last_sequence) + 1,
      FaultyStore::Fault::kDiskFull);
  Start();
  ASSERT_TRUE(Await([&] { return !coordinator_.controller().Health().ok(); }));
  for (int i = 0; i < 50; ++i) {
    notifier_->Tick();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(receiver.count(), 1u);
  Restart();
  ASSERT_TRUE(AwaitDelivered(job, 1));
  EXPECT_EQ(TestReceiver::BodyOf(receiver.Request(0)), TestReceiver::BodyOf(receiver.Request(1)));
}

TEST_F(NotifierTest, PostsToAUrlNoLongerAllowedAreGivenUp) {
  TestReceiver receiver;
  const std::string job = Submit({receiver.Url()});
  Start({.allow = AllowList()});
  ASSERT_TRUE(Await([&] { return Target(job).given_up() == 1; }));
  EXPECT_THAT(Target(job).problem(), HasSubstr("--notify-allow names nothing"));
  EXPECT_EQ(receiver.count(), 0u);
}

TEST_F(NotifierTest, AJobThatNamesAnotherHostIsRefused) {
  v1::SubmitJobRequest request;
  request.set_spec_yaml(
      TestCoordinator::Spec("train", 1, "notify: [\"http://169.254.169.254/latest\"]\n"));
  const auto refused = coordinator_.Do<v1::SubmitJobResponse>(request);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_EQ(refused.status().message(),
            "notify[0].url: the coordinator may not post to http://169.254.169.254; its "
            "--notify-allow names 127.0.0.1");
}

TEST_F(NotifierTest, ABodyIsSignedWithTheSecretOfTheFile) {
  const std::string path = absl::StrCat(testing::TempDir(), "/secret");
  std::ofstream(path) << "hush\n";
  const auto secret = ReadSecret(path);
  ASSERT_EQ(secret.status(), absl::OkStatus());
  EXPECT_EQ(*secret, "hush");
  TestReceiver receiver;
  Start({.allow = Loopback(), .secret = *secret});
  ASSERT_TRUE(AwaitDelivered(Submit({receiver.Url()}), 1));
  const std::string request = receiver.Request(0);
  EXPECT_THAT(request,
              HasSubstr(absl::StrCat("\r\nX-Nibble-Signature: ",
                                     PostSignature("hush", TestReceiver::BodyOf(request)))));
  std::ofstream(path, std::ios::trunc) << "\n";
  EXPECT_TRUE(absl::IsInvalidArgument(ReadSecret(path).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadSecret(path + ".not").status()));
}

}  // namespace
}  // namespace nibble
