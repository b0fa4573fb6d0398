// Callbacks of the controller run after its locks are released: they may call back into it, and a
// slow one delays no change and no report.
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/controller.h"
#include "server/controller/testing.h"

namespace nibble {
namespace {

v1::SetQueueRequest QueueRequest(const std::string& name) {
  v1::SetQueueRequest request;
  request.set_request_id("request-of-" + name);
  request.mutable_queue()->set_name(name);
  request.mutable_queue()->set_quota_slots(1);
  return request;
}

class ControllerCallbacksTest : public testing::Test {
 protected:
  Controller& controller() { return coordinator_.controller(); }

  // Calls everything that a callback may call. Returns the answer to its change.
  std::future<absl::Status> CallEverything(const std::string& name) {
    auto answer = std::make_shared<std::promise<absl::Status>>();
    controller().requests().Change<v1::SetQueueResponse>(
        QueueRequest(name), "ann", [answer](const absl::StatusOr<v1::SetQueueResponse>& response) {
          answer->set_value(response.status());
        });
    controller().Tick();
    EXPECT_EQ(controller().Read(v1::ListJobsRequest()).status(), absl::OkStatus());
    const auto watch = controller().watches().Open({}, nullptr);
    EXPECT_EQ(watch.status(), absl::OkStatus());
    controller().watches().Close(*watch);
    const auto session = controller().sessions().Open(nullptr);
    EXPECT_EQ(session.status(), absl::OkStatus());
    controller().sessions().Close(*session);
    controller().reports().Take(worker_session_, worker_report_, [](const absl::Status&) {});
    EXPECT_EQ(controller().reports().Desired(worker_session_).cluster(), "test");
    EXPECT_EQ(controller().Health(), absl::OkStatus());
    return answer->get_future();
  }

  // Opens the session of worker w1 and reports.
  void Connect(const std::function<void()>& notify, WorkerSession::End end = nullptr) {
    auto session = controller().sessions().Open(notify, std::move(end));
    ASSERT_EQ(session.status(), absl::OkStatus());
    worker_session_ = *std::move(session);
    v1::WorkerIdentity& identity = *worker_report_.mutable_identity();
    identity.set_name("w1");
    identity.set_incarnation(1);
    identity.set_address("w1:7000");
    identity.set_slots(2);
    identity.mutable_hardware()->set_device(v1::DEVICE_CPU);
    ASSERT_EQ(Report(), absl::OkStatus());
  }
  absl::Status Report() {
    auto taken = std::make_shared<std::promise<absl::Status>>();
    controller().reports().Take(worker_session_, worker_report_,
                                [taken](const absl::Status& status) { taken->set_value(status); });
    return taken->get_future().get();
  }

  TestCoordinator coordinator_{{.fresh_id = FixedId}};
  std::shared_ptr<WorkerSession> worker_session_;
  v1::ConnectRequest worker_report_;
};

TEST_F(ControllerCallbacksTest, ASessionMayCallBackWhenItIsNotified) {
  std::promise<std::future<absl::Status>> called;
  std::atomic<int> calls = 0;
  Connect([&] {
    if (calls++ == 0) called.set_value(CallEverything("from-notify"));
  });
  coordinator_.Submit(1);
  coordinator_.Tick();
  EXPECT_EQ(called.get_future().get().get(), absl::OkStatus());
  controller().Settle();  // later notifications use `calls`
}

TEST_F(ControllerCallbacksTest, ASessionClosedWhileAnotherIsNotifiedIsNotNotified) {
  WorkerSessions& sessions = controller().sessions();
  std::promise<void> began, may_end;
  std::atomic<int> calls = 0;
  std::vector<WorkerSessions::Session> both;
  v1::WorkerIdentity identity;
  identity.set_name("w1");
  for (int i = 0; i < 2; ++i) {
    const auto session = sessions.Open([&] {
      if (++calls > 1) return;
      began.set_value();
      may_end.get_future().wait();
    });
    ASSERT_EQ(session.status(), absl::OkStatus());
    sessions.SetWorker(*session, identity);
    both.push_back(*session);
  }
  sessions.Notify({"w1"});
  began.get_future().wait();
  for (const WorkerSessions::Session& session : both) sessions.Close(session);
  may_end.set_value();
  sessions.Settle();
  EXPECT_EQ(calls, 1);
}

TEST_F(ControllerCallbacksTest, ASessionMayCallBackWhenItEnds) {
  std::vector<std::future<absl::Status>> answers;
  Connect(nullptr, [&](const absl::Status& why) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(why));
    answers.push_back(CallEverything("from-end"));
  });
  coordinator_.clock.Advance(10'001);
  controller().Tick();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].get(), absl::OkStatus());
}

TEST_F(ControllerCallbacksTest, AWatchAndAWaitMayCallBackWhenTheyAreNotified) {
  Connect(nullptr);
  const std::string job = coordinator_.Submit(1);
  std::promise<std::future<absl::Status>> from_watch, from_wait;
  const auto watch =
      controller().watches().Open({}, [&] { from_watch.set_value(CallEverything("from-watch")); });
  ASSERT_EQ(watch.status(), absl::OkStatus());
  v1::WaitJobRequest wait;
  wait.set_job(job);
  ASSERT_GT(
      controller().watches().Wait(
          wait, [&](const absl::Status&) { from_wait.set_value(CallEverything("from-wait")); }),
      0);
  controller().watches().RequestTurn(*watch);
  v1::KillJobRequest kill;
  kill.set_job(job);
  ASSERT_EQ(coordinator_.Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  EXPECT_EQ(from_watch.get_future().get().get(), absl::OkStatus());
  EXPECT_EQ(from_wait.get_future().get().get(), absl::OkStatus());
  controller().watches().Close(*watch);
  controller().Settle();  // the callbacks use the promises
}

TEST_F(ControllerCallbacksTest, AnAnswerMayCallBackAlsoWhenATickGivesIt) {
  TestWorker worker(coordinator_, "w2", 2);
  const std::string job = worker.RunJob(2, 50);
  Connect(nullptr);
  v1::SetRecipeRequest request;
  request.set_request_id("request-of-recipe");
  request.set_job(job);
  request.set_expected_revision(-1);
  request.set_at("now");
  v1::FieldSetting& setting = *request.mutable_change()->add_set();
  setting.set_field("fprop");
  setting.set_value("bf16");
  std::vector<std::future<absl::Status>> answers;
  controller().requests().Change<v1::SetRecipeResponse>(
      request, "ann", [&](const absl::StatusOr<v1::SetRecipeResponse>& response) {
        EXPECT_EQ(response.status(), absl::OkStatus());
        answers.push_back(CallEverything("from-answer"));
      });
  controller().Settle();
  EXPECT_TRUE(answers.empty());
  coordinator_.clock.Advance(1000);  // ControllerOptions::switch_wait_ms
  controller().Tick();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].get(), absl::OkStatus());
}

TEST_F(ControllerCallbacksTest, TheHookThatTheStoreHasStoppedMayCallBack) {
  auto memory = MemoryStore::Open(std::make_shared<MemoryDisk>(), {.cluster = "test"});
  ASSERT_EQ(memory.status(), absl::OkStatus());
  FaultyStore store(*std::move(memory));
  Controller* self = nullptr;
  std::promise<absl::Status> refused;
  ControllerOptions options;
  options.cluster = "test";
  const auto controller =
      Controller::Start(store, coordinator_.clock, options, [&](const absl::Status&) {
        EXPECT_FALSE(self->Health().ok());
        self->Tick();
        self->requests().Change<v1::SetQueueResponse>(
            QueueRequest("late"), "ann", [&](const absl::StatusOr<v1::SetQueueResponse>& response) {
              refused.set_value(response.status());
            });
      });
  ASSERT_EQ(controller.status(), absl::OkStatus());
  self = controller->get();
  store.FailAppend(2, FaultyStore::Fault::kDiskFull);
  EXPECT_TRUE(absl::IsUnavailable(
      ChangeAndWait<v1::SetQueueResponse>(*self, QueueRequest("a"), "ann").status()));
  EXPECT_TRUE(absl::IsUnavailable(refused.get_future().get()));
}

TEST_F(ControllerCallbacksTest, ASlowReaderDelaysNeitherChangesNorReportsAndMissesNothing) {
  std::promise<void> may_end;
  const std::shared_future<void> ended = may_end.get_future().share();
  std::promise<void> notified, watched;
  std::atomic<int> notifications = 0;
  std::atomic<int64_t> newest = 0;  // the update of the newest desired state that it fetched
  Connect([&] {
    if (notifications++ == 0) {
      notified.set_value();
      ended.wait();
    }
    newest = controller().reports().Desired(worker_session_).store().sequence();
  });
  std::atomic<bool> first = true;
  const auto watch = controller().watches().Open({}, [&] {
    if (!first.exchange(false)) return;
    watched.set_value();
    ended.wait();
  });
  ASSERT_EQ(watch.status(), absl::OkStatus());
  while ((*watch)->phase() != Watch::Phase::kCaughtUp) ASSERT_NE((*watch)->Next(), nullptr);
  controller().watches().RequestTurn(*watch);
  const std::string job = coordinator_.Submit(1);
  controller().Tick();
  notified.get_future().wait();
  watched.get_future().wait();
  // Both readers block their threads.
  for (int priority = 1; priority <= 20; ++priority) {
    v1::SetJobPriorityRequest request;
    request.set_job(job);
    request.set_priority(priority);
    ASSERT_EQ(coordinator_.Do<v1::SetJobPriorityResponse>(request).status(), absl::OkStatus());
  }
  EXPECT_EQ(Report(), absl::OkStatus());
  controller().Tick();
  may_end.set_value();
  controller().Settle();
  EXPECT_EQ(newest, controller().Inspect([](const State& state) { return state.sequence(); }));
  // The watch has every priority, in order.
  std::vector<int> priorities = {0};
  while (const Watch::Message message = (*watch)->Next()) {
    if (!message->has_job() || message->job().scheduling().priority() == priorities.back())
      continue;
    priorities.push_back(message->job().scheduling().priority());
  }
  std::vector<int> set(21);
  std::iota(set.begin(), set.end(), 0);
  EXPECT_EQ(priorities, set);
  controller().watches().Close(*watch);
}

}  // namespace
}  // namespace nibble
