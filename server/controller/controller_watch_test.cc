// Watches of the controller: their beginnings, resume tokens, pages of jobs, waits for a state.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/controller.h"
#include "server/controller/testing.h"
#include "server/controller/watch_hub.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

std::vector<std::string> Drain(Watch& watch) {
  std::vector<std::string> messages;
  while (const Watch::Message message = watch.Next()) {
    messages.push_back(message->has_job()      ? absl::StrCat("job ", message->job().id())
                       : message->has_event()  ? absl::StrCat("event ", message->event().number())
                       : message->has_sample() ? "sample"
                                               : "caught up");
    messages.push_back(message->resume_token());
  }
  return messages;
}

TEST(ControllerWatchTest, AWatchThatResumesMissesNothing) {
  TestCoordinator coordinator({.fresh_id = FixedId});
  const std::string job = coordinator.Submit(1);
  v1::WatchJobsRequest request;
  request.add_jobs(job);
  auto watch = coordinator.controller().watches().Open(request, nullptr);
  ASSERT_EQ(watch.status(), absl::OkStatus());
  std::vector<std::string> messages = Drain(**watch);
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0], absl::StrCat("job ", job));
  EXPECT_EQ(messages[2], "caught up");
  const std::string token = messages.back();
  coordinator.controller().watches().Close(*watch);

  v1::PauseJobRequest pause;
  pause.set_job(job);
  ASSERT_EQ(coordinator.Do<v1::PauseJobResponse>(pause).status(), absl::OkStatus());
  request.set_resume_token(token);
  auto resumed = coordinator.controller().watches().Open(request, nullptr);
  ASSERT_EQ(resumed.status(), absl::OkStatus());
  messages = Drain(**resumed);
  EXPECT_THAT(messages, testing::Contains("event 2"));
  EXPECT_THAT(messages, testing::Not(testing::Contains("event 1")));
  v1::ResumeJobRequest resume;
  resume.set_job(job);
  ASSERT_EQ(coordinator.Do<v1::ResumeJobResponse>(resume).status(), absl::OkStatus());
  EXPECT_THAT(Drain(**resumed), testing::Contains(absl::StrCat("job ", job)));

  request.set_resume_token("token");
  EXPECT_TRUE(
      absl::IsInvalidArgument(coordinator.controller().watches().Open(request, nullptr).status()));
  // Tokens of another epoch, another store, and of updates that a restored store lacks.
  const std::string place = token.substr(token.find('s'));
  const std::string mark = token.substr(0, token.find('.'));
  for (const std::string& other : {absl::StrCat(mark, ".2.", place), absl::StrCat("0f.1.", place),
                                   place, absl::StrCat(mark, ".1.s999999")}) {
    request.set_resume_token(other);
    EXPECT_TRUE(
        absl::IsOutOfRange(coordinator.controller().watches().Open(request, nullptr).status()))
        << other;
  }
}

using Messages = std::vector<v1::WatchJobsResponse>;

Messages MessagesOf(TestCoordinator& coordinator, const std::string& token) {
  v1::WatchJobsRequest request;
  request.set_resume_token(token);
  const auto watch = coordinator.controller().watches().Open(request, nullptr);
  EXPECT_EQ(watch.status(), absl::OkStatus());
  Messages messages;
  while (const Watch::Message message = (*watch)->Next()) messages.push_back(*message);
  EXPECT_EQ((*watch)->status(), absl::OkStatus());
  coordinator.controller().watches().Close(*watch);
  return messages;
}

void AddEvents(const Messages& messages, size_t count, std::vector<std::string>& events) {
  for (size_t i = 0; i < count; ++i) {
    if (!messages[i].has_event()) continue;
    events.push_back(absl::StrCat(messages[i].event().job(), "/", messages[i].event().number()));
  }
}

bool ShowsEnd(const Messages& messages, size_t count, const std::string& job) {
  return std::any_of(messages.begin(), messages.begin() + static_cast<ptrdiff_t>(count),
                     [&](const v1::WatchJobsResponse& message) {
                       return message.job().id() == job &&
                              message.job().state() == v1::JOB_STATE_CANCELLED;
                     });
}

TEST(ControllerWatchTest, AWatchCutAfterAnyMessageResumesWithoutARepeatOrAGap) {
  TestCoordinator coordinator({.fresh_id = FixedId});
  TestWorker worker(coordinator, "w1", 2);
  worker.Obey();
  const std::string ends = coordinator.Submit(1, "ends");
  const std::string stays = coordinator.Submit(1, "stays");
  coordinator.Tick();
  worker.Obey(1);
  const std::string start = MessagesOf(coordinator, "").back().resume_token();
  const auto live = coordinator.controller().watches().Open({}, nullptr);
  ASSERT_EQ(live.status(), absl::OkStatus());
  while ((*live)->Next() != nullptr) continue;
  // One update with events of both jobs, then one that ends a job.
  coordinator.clock.Advance(60'000);
  coordinator.Tick();
  v1::KillJobRequest kill;
  kill.set_job(ends);
  ASSERT_EQ(coordinator.Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  Messages later;
  while (const Watch::Message message = (*live)->Next()) later.push_back(*message);

  std::vector<std::string> all;
  AddEvents(later, later.size(), all);
  EXPECT_THAT(all, testing::SizeIs(testing::Ge(5)));
  for (const Messages& read : {later, MessagesOf(coordinator, start)}) {
    for (size_t cut = 1; cut <= read.size(); ++cut) {
      SCOPED_TRACE(absl::StrCat("cut after ", cut, ": ", read[cut - 1].ShortDebugString()));
      std::vector<std::string> events;
      AddEvents(read, cut, events);
      const Messages rest = MessagesOf(coordinator, read[cut - 1].resume_token());
      AddEvents(rest, rest.size(), events);
      EXPECT_EQ(events, all);
      EXPECT_TRUE(ShowsEnd(read, cut, ends) || ShowsEnd(rest, rest.size(), ends));
    }
  }
}

TEST(ControllerWatchTest, AWatchOfAllJobsBeginsWithUnfinishedOnesAndAWatchOfSomeWithThese) {
  TestCoordinator coordinator;
  const std::string over = coordinator.Submit(1);
  const std::string waits = coordinator.Submit(1);
  v1::KillJobRequest kill;
  kill.set_job(over);
  ASSERT_EQ(coordinator.Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  v1::WatchJobsRequest request;
  auto all = coordinator.controller().watches().Open(request, nullptr);
  ASSERT_EQ(all.status(), absl::OkStatus());
  EXPECT_EQ(Drain(**all).front(), absl::StrCat("job ", waits));
  request.add_jobs(over);
  auto some = coordinator.controller().watches().Open(request, nullptr);
  ASSERT_EQ(some.status(), absl::OkStatus());
  EXPECT_EQ(Drain(**some).front(), absl::StrCat("job ", over));
  request.add_jobs("train-9");
  EXPECT_TRUE(absl::IsNotFound(coordinator.controller().watches().Open(request, nullptr).status()));
}

TEST(ControllerWatchTest, AResumeTokenBeforeTheOldestEventThatIsKeptIsOutOfRange) {
  TestCoordinator coordinator;
  const std::string job = coordinator.Submit(1);
  for (int i = 1; i <= kMaxEventsPerJob; ++i) {
    v1::SetJobPriorityRequest request;
    request.set_job(job);
    request.set_priority(i);
    ASSERT_EQ(coordinator.Do<v1::SetJobPriorityResponse>(request).status(), absl::OkStatus());
  }
  const std::string mark =
      coordinator.controller().Inspect([](const State& state) { return StoreMark(state.store()); });
  v1::WatchJobsRequest request;
  request.set_resume_token(absl::StrCat(mark, "s1"));
  auto late = coordinator.controller().watches().Open(request, nullptr);
  ASSERT_EQ(late.status(), absl::OkStatus());
  EXPECT_TRUE(Drain(**late).empty());
  EXPECT_TRUE(absl::IsOutOfRange((*late)->status()));
  // Whoever watches all jobs may see some of them alone.
  EXPECT_THAT(std::string((*late)->status().message()), testing::Not(testing::HasSubstr(job)));
  request.set_resume_token(absl::StrCat(mark, "s3"));
  auto resumed = coordinator.controller().watches().Open(request, nullptr);
  ASSERT_EQ(resumed.status(), absl::OkStatus());
  EXPECT_FALSE(Drain(**resumed).empty());
  EXPECT_EQ((*resumed)->status(), absl::OkStatus());
}

TEST(ControllerWatchTest, AWatchThatNeverReadsIsCut) {
  ControllerOptions options;
  options.watches.kept = 3;
  TestCoordinator coordinator(options);
  auto watch = coordinator.controller().watches().Open({}, nullptr);
  ASSERT_EQ(watch.status(), absl::OkStatus());
  Drain(**watch);
  for (int i = 0; i < 3; ++i) coordinator.Submit(1);
  EXPECT_EQ((*watch)->Next(), nullptr);
  EXPECT_TRUE(absl::IsResourceExhausted((*watch)->status()));
}

TEST(ControllerWatchTest, JobsAreSubmittedListedAndWatchedWhileABeginningIsHalfRead) {
  TestCoordinator coordinator;
  for (int i = 0; i < 20; ++i) coordinator.Submit(1);
  auto half = coordinator.controller().watches().Open({}, nullptr);
  ASSERT_EQ(half.status(), absl::OkStatus());
  for (int i = 0; i < 10; ++i) EXPECT_NE((*half)->Next(), nullptr);
  // Reading its snapshot takes no lock that any of this would wait for.
  for (int i = 0; i < 20; ++i) coordinator.Submit(1);
  TestWorker worker(coordinator, "w", 1);
  EXPECT_EQ(worker.Report(), absl::OkStatus());
  coordinator.Tick();
  auto other = coordinator.controller().watches().Open({}, nullptr);
  ASSERT_EQ(other.status(), absl::OkStatus());
  EXPECT_EQ(Drain(**other).size(), 2u * 41);
  // The rest of the beginning is as of its start; later updates follow.
  std::vector<std::string> rest = Drain(**half);
  ASSERT_GT(rest.size(), 22u);
  EXPECT_EQ(rest[18], "job train-20");
  EXPECT_EQ(rest[20], "caught up");
  EXPECT_THAT(rest, testing::Contains("job train-40"));
}

TEST(ControllerWatchTest, PagesOfJobsHaveEachJobOnceEvenIfJobsAreSubmittedInBetween) {
  TestCoordinator coordinator;
  for (int i = 0; i < 7; ++i) coordinator.Submit(1);
  v1::ListJobsRequest request;
  request.mutable_page()->set_size(3);
  std::vector<int64_t> numbers;
  do {
    const auto page = coordinator.controller().Read(request);
    ASSERT_EQ(page.status(), absl::OkStatus());
    for (const v1::Job& job : page->jobs()) {
      numbers.push_back(std::stoll(job.id().substr(job.id().rfind('-') + 1)));
    }
    request.mutable_page()->set_token(page->next_token());
    coordinator.Submit(1);
  } while (!request.page().token().empty());
  EXPECT_THAT(numbers, testing::ElementsAre(7, 6, 5, 4, 3, 2, 1));
}

TEST(ControllerWatchTest, NoMoreWatchesAreOpenThanAllowed) {
  ControllerOptions options;
  options.watches.watches = 1;
  TestCoordinator coordinator(options);
  auto first = coordinator.controller().watches().Open({}, nullptr);
  ASSERT_EQ(first.status(), absl::OkStatus());
  EXPECT_TRUE(
      absl::IsResourceExhausted(coordinator.controller().watches().Open({}, nullptr).status()));
  coordinator.controller().watches().Close(*first);
  EXPECT_EQ(coordinator.controller().watches().Open({}, nullptr).status(), absl::OkStatus());
}

TEST(ControllerWatchTest, AWaitEndsWithItsStateOrWhenThatIsRuledOut) {
  TestCoordinator coordinator;
  const std::string job = coordinator.Submit(1);
  std::vector<absl::Status> ends;
  const auto end = [&ends](const absl::Status& status) { ends.push_back(status); };
  v1::WaitJobRequest finished;
  finished.set_job(job);
  v1::WaitJobRequest running = finished;
  running.add_states(v1::JOB_STATE_RUNNING);
  EXPECT_GT(coordinator.controller().watches().Wait(finished, end), 0);
  EXPECT_GT(coordinator.controller().watches().Wait(running, end), 0);
  EXPECT_TRUE(ends.empty());
  v1::KillJobRequest kill;
  kill.set_job(job);
  ASSERT_EQ(coordinator.Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  coordinator.controller().Settle();
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0], absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(ends[1]));
}

}  // namespace

}  // namespace nibble
