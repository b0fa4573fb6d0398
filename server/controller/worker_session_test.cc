#include "server/controller/worker_session.h"

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

v1::WorkerIdentity Identity(const std::string& name, int64_t incarnation = 1) {
  v1::WorkerIdentity identity;
  identity.set_name(name);
  identity.set_incarnation(incarnation);
  return identity;
}

class WorkerSessionsTest : public testing::Test {
 protected:
  using Session = WorkerSessions::Session;

  Session Open(const std::string& worker, WorkerSession::Notify notify = nullptr,
               WorkerSession::End end = nullptr) {
    auto session = sessions_.Open(std::move(notify), std::move(end));
    EXPECT_EQ(session.status(), absl::OkStatus());
    sessions_.SetWorker(*session, Identity(worker));
    return *session;
  }

  ManualClock clock_{1'000'000};
  OrphanRegistry orphans_;
  TrashRegistry trash_;
  WorkerSessions sessions_{clock_, {.most = 3, .lease_ms = 1000}, orphans_, trash_};
};

TEST_F(WorkerSessionsTest, EverySessionOfAWorkerIsNotifiedAndNoOther) {
  std::atomic<int> w1 = 0, w2 = 0;
  const Session old_stream = Open("w1", [&w1] { ++w1; });
  const Session new_stream = Open("w1", [&w1] { ++w1; });
  const Session other = Open("w2", [&w2] { ++w2; });
  sessions_.Notify({"w1", "unknown"});
  sessions_.Settle();
  EXPECT_EQ(w1, 2);
  EXPECT_EQ(w2, 0);
}

TEST_F(WorkerSessionsTest, ANotificationAfterTheLastOneBeganIsNotLost) {
  std::promise<void> began, may_end;
  std::atomic<int> calls = 0;
  const Session session = Open("w1", [&] {
    if (++calls > 1) return;
    began.set_value();
    may_end.get_future().wait();
  });
  sessions_.Notify({"w1"});
  began.get_future().wait();
  // Both come while the first one runs: they are merged into one.
  sessions_.Notify({"w1"});
  sessions_.Notify({"w1"});
  may_end.set_value();
  sessions_.Settle();
  EXPECT_EQ(calls, 2);
}

TEST_F(WorkerSessionsTest, ASlowSessionDelaysNoCallOfAnother) {
  std::promise<void> began, may_end;
  const Session slow = Open("w1", [&] {
    began.set_value();
    may_end.get_future().wait();
  });
  sessions_.Notify({"w1"});
  began.get_future().wait();
  const Session other = Open("w2");
  sessions_.Notify({"w2"});
  sessions_.EndSilent(clock_.SteadyMs());
  sessions_.Close(other);
  EXPECT_EQ(sessions_.count(), 1u);
  may_end.set_value();
  sessions_.Settle();  // the call uses the promise
}

TEST_F(WorkerSessionsTest, AClosedSessionIsNotNotified) {
  std::atomic<int> calls = 0;
  const Session session = Open("w1", [&calls] { ++calls; });
  sessions_.Close(session);
  sessions_.Notify({"w1"});
  sessions_.Settle();
  EXPECT_EQ(calls, 0);
}

TEST_F(WorkerSessionsTest, ASessionWithoutAReportForALeaseEnds) {
  std::vector<std::string> ended;
  const auto end = [&ended](const absl::Status& why) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(why));
    ended.emplace_back(why.message());
  };
  const Session silent = Open("w1", nullptr, end);
  const auto unknown = sessions_.Open(nullptr, end);
  ASSERT_EQ(unknown.status(), absl::OkStatus());
  clock_.Advance(1000);
  const Session reports = Open("w2", nullptr, end);
  sessions_.EndSilent(clock_.SteadyMs());
  EXPECT_TRUE(ended.empty());
  clock_.Advance(1);
  sessions_.EndSilent(clock_.SteadyMs());
  EXPECT_THAT(ended, testing::UnorderedElementsAre(
                         testing::StartsWith("w1: no report for 1001 ms"),
                         testing::StartsWith("a stream that never reported: no report")));
}

TEST_F(WorkerSessionsTest, NoMoreSessionsAreOpenThanAllowed) {
  const Session first = Open("w1");
  Open("w2");
  Open("w3");
  const absl::Status refused = sessions_.Open(nullptr).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(), "workers: 3 are connected; allowed: 3");
  sessions_.Close(first);
  EXPECT_EQ(sessions_.Open(nullptr).status(), absl::OkStatus());
}

TEST_F(WorkerSessionsTest, OrphansOfAWorkerAreForgottenWithItsLastSession) {
  v1::ConnectRequest report;
  report.add_orphans()->set_job("lost-1");
  orphans_.Replace("w1", report, {}, [](const auto&, const auto&) { return true; });
  const Session old_stream = Open("w1");
  const Session new_stream = Open("w1");
  sessions_.Close(old_stream);
  EXPECT_FALSE(orphans_.empty());
  sessions_.Close(new_stream);
  EXPECT_TRUE(orphans_.empty());
}

TEST(WorkerSessionTest, ReportsOfSomeShardsAddUpToABoundAndOneOfAllReplacesThem) {
  WorkerSession session(nullptr, nullptr, nullptr, 0, /*most_shards=*/2);
  const auto note = [&session](const std::vector<int32_t>& ranks, bool all) {
    v1::ConnectRequest report;
    report.set_all_shards(all);
    for (const int32_t rank : ranks) report.add_shards()->set_rank(rank);
    session.NoteShards(report);
    return session.BeginDesired().shards.size();
  };
  EXPECT_EQ(note({1}, false), 1u);
  EXPECT_EQ(note({1, 2, 3}, false), 2u);
  EXPECT_EQ(note({4, 5}, false), 2u);
  EXPECT_EQ(note({4, 5, 6}, true), 3u);
  EXPECT_EQ(note({}, true), 0u);
}

TEST(WorkerSessionTest, AStreamBelongsToOneIncarnationOfOneWorker) {
  WorkerSession session(nullptr, nullptr, nullptr, 0);
  EXPECT_EQ(session.NoteReport(Identity("w1"), 5), absl::OkStatus());
  EXPECT_TRUE(session.SetWorker(Identity("w1")));
  EXPECT_FALSE(session.SetWorker(Identity("w1")));
  EXPECT_EQ(session.NoteReport(Identity("w1"), 6), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(session.NoteReport(Identity("w1", 2), 7)));
  EXPECT_TRUE(absl::IsInvalidArgument(session.NoteReport(Identity("w2"), 8)));
  EXPECT_EQ(session.heard_ms(), 8);
}

TEST(WorkerSessionTest, AReportAboutACopyIsStaleUntilItAcknowledgesTheOrderToDropIt) {
  WorkerSession session(nullptr, nullptr, nullptr, 0);
  EXPECT_FALSE(session.IsStale("shard", 0));
  session.NoteDropOrder("shard", 4);
  EXPECT_TRUE(session.IsStale("shard", 3));
  EXPECT_FALSE(session.IsStale("shard", 4));
  EXPECT_FALSE(session.IsStale("other", 3));
  v1::ConnectRequest report;
  report.set_desired_number(4);
  session.NoteShards(report);
  EXPECT_FALSE(session.IsStale("shard", 3)) << "the order is over";
}

TEST(WorkerSessionTest, AReportAboutADamagedCopyIsStaleUntilItsDropIsOrderedAndAcknowledged) {
  WorkerSession session(nullptr, nullptr, nullptr, 0);
  session.NoteDamaged("shard");
  EXPECT_TRUE(session.IsStale("shard", 100));
  session.NoteDropOrder("shard", 101);
  session.TakeDamaged({"shard"});
  EXPECT_TRUE(session.IsStale("shard", 100));
  EXPECT_FALSE(session.IsStale("shard", 101));
}

}  // namespace
}  // namespace nibble
