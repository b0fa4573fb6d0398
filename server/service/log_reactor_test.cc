#include "server/service/log_reactor.h"

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "proto/nibble/v1/rank_log.grpc.pb.h"
#include "server/controller/testing.h"
#include "server/service/coordinator_server.h"

namespace nibble {
namespace {

using grpc::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr std::chrono::seconds kLogDeadline(60);

constexpr int32_t kEvents = -1;  // in place of a rank: the event log

// A fake daemon's logs: lines by attempt and rank, and which logs are still being written.
class Daemon : public v1::RankLogs::Service {
 public:
  Daemon() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Daemon() override { Stop(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopped_ = true;
      changed_.SignalAll();
    }
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  void AddLine(int64_t attempt, int32_t rank, const std::string& line) {
    MutexLock lock(&mutex_);
    logs_[{attempt, rank}].lines.push_back(line);
    changed_.SignalAll();
  }
  void EndRank(int64_t attempt, int32_t rank) {
    MutexLock lock(&mutex_);
    logs_[{attempt, rank}].over = true;
    changed_.SignalAll();
  }
  void BeSilent() {
    MutexLock lock(&mutex_);
    silent_ = true;
  }

  grpc::Status ReadRankLog(grpc::ServerContext* context, const v1::ReadRankLogRequest* request,
                           grpc::ServerWriter<v1::ReadRankLogResponse>* writer) override {
    MutexLock lock(&mutex_);
    ++reading_;
    const grpc::Status status = Serve(*context, *request, *writer);
    --reading_;
    changed_.SignalAll();
    return status;
  }

  // Whether this many responses were sent within the deadline.
  bool WaitUntilSent(int responses) {
    return Await([&] {
      mutex_.AssertHeld();
      return sent_ >= responses;
    });
  }
  int reading() {
    const MutexLock lock(&mutex_);
    return reading_;
  }
  // Waits a moment for a change.
  bool AwaitChange() {
    const MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, std::chrono::milliseconds(20));
  }
  // Whether all readers are gone within the deadline.
  bool WaitUntilUnread() {
    return Await([this] {
      mutex_.AssertHeld();
      return reading_ == 0;
    });
  }

 private:
  struct Log {
    std::vector<std::string> lines;
    bool over = false;
  };

  template <class Condition>
  bool Await(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + kLogDeadline;
    MutexLock lock(&mutex_);
    while (!condition()) {
      if (changed_.WaitUntil(&mutex_, deadline)) return condition();
    }
    return true;
  }

  grpc::Status Serve(grpc::ServerContext& context, const v1::ReadRankLogRequest& request,
                     grpc::ServerWriter<v1::ReadRankLogResponse>& writer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = logs_.find({request.attempt(), request.events() ? kEvents : request.rank()});
    if (found == logs_.end()) return {StatusCode::NOT_FOUND, "no such log"};
    const Log& log = found->second;
    size_t next = 0;
    if (request.tail_lines() > 0 && log.lines.size() > static_cast<size_t>(request.tail_lines())) {
      next = log.lines.size() - request.tail_lines();
    }
    while (!stopped_) {
      if (context.IsCancelled()) return grpc::Status::CANCELLED;
      if (!silent_ && next < log.lines.size()) {
        v1::ReadRankLogResponse response;
        while (next < log.lines.size()) response.add_lines(log.lines[next++]);
        mutex_.Unlock();
        writer.Write(response);
        mutex_.Lock();
        ++sent_;
        changed_.SignalAll();
      } else if (!silent_ && (!request.follow() || log.over)) {
        return grpc::Status::OK;
      } else {
        // Cancellation does not notify, so it is polled.
        (void)changed_.WaitFor(&mutex_, std::chrono::milliseconds(20));
      }
    }
    return {StatusCode::UNAVAILABLE, "stopping"};
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::pair<int64_t, int32_t>, Log> logs_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  int reading_ ABSL_GUARDED_BY(mutex_) = 0;
  int sent_ ABSL_GUARDED_BY(mutex_) = 0;
};

class LogReactorTest : public testing::Test {
 protected:
  explicit LogReactorTest(int streams = 64, int64_t reason_ms = 60'000)
      : w1_(coordinator_, "w1", 1), w2_(coordinator_, "w2", 1) {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.service.logs = {
        .streams = streams, .silence_ms = 300, .look_ms = 10, .reason_ms = reason_ms};
    auto server = CoordinatorServer::Start(coordinator_.controller(), options);
    EXPECT_EQ(server.status(), absl::OkStatus());
    server_ = *std::move(server);
    // Else gRPC would take up to 16 MiB for a caller that does not read.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stub_ = v1::Coordinator::NewStub(
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                  grpc::InsecureChannelCredentials(), arguments));
    w1_.report.mutable_identity()->set_address(d1_.address());
    w2_.report.mutable_identity()->set_address(d2_.address());
    w1_.Obey();
    w2_.Obey();
  }

  std::string Run(int ranks) {
    const std::string job = coordinator_.Submit(ranks);
    coordinator_.Tick();
    w1_.Obey();
    w2_.Obey();
    return job;
  }
  void Fail(TestWorker& worker) {
    worker.report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_FAILED);
    ASSERT_EQ(worker.Report(), absl::OkStatus());
  }
  void KillJob(const std::string& job) {
    v1::KillJobRequest kill;
    kill.set_job(job);
    ASSERT_EQ(coordinator_.Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  }

  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::StreamLogsResponse>> reader;

    // One string per line: "attempt.rank line".
    std::string Next() {
      while (at >= lines.size()) {
        v1::StreamLogsResponse response;
        if (!reader->Read(&response)) return "end";
        lines.clear();
        at = 0;
        for (const std::string& line : response.lines()) {
          lines.push_back(absl::StrCat(response.attempt(), ".", response.rank(), " ", line));
        }
      }
      return lines[at++];
    }
    std::vector<std::string> All() {
      std::vector<std::string> all;
      for (std::string line = Next(); line != "end"; line = Next()) all.push_back(line);
      return all;
    }
    std::vector<std::string> lines;
    size_t at = 0;
  };
  std::unique_ptr<Stream> Open(const std::string& job, int32_t rank, bool follow = false,
                               int64_t attempt = 0, int32_t tail = 0) {
    v1::StreamLogsRequest request;
    request.set_job(job);
    request.set_rank(rank);
    request.set_attempt(attempt);
    request.set_tail_lines(tail);
    request.set_follow(follow);
    auto stream = std::make_unique<Stream>();
    stream->context.set_deadline(std::chrono::system_clock::now() + kLogDeadline);
    stream->reader = stub_->StreamLogs(&stream->context, request);
    return stream;
  }

  Daemon d1_, d2_;
  TestCoordinator coordinator_;
  TestWorker w1_, w2_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

TEST_F(LogReactorTest, LinesOfAllRanksAreReadFromTheirWorkersByRank) {
  const std::string job = Run(2);
  d1_.AddLine(1, 0, "a");
  d1_.AddLine(1, 0, "b");
  d2_.AddLine(1, 1, "c");
  auto all = Open(job, -1);
  EXPECT_THAT(all->All(), ElementsAre("1.0 a", "1.0 b", "1.1 c"));
  EXPECT_TRUE(all->reader->Finish().ok());
  auto one = Open(job, 1);
  EXPECT_THAT(one->All(), ElementsAre("1.1 c"));
  auto tail = Open(job, 0, false, 1, 1);
  EXPECT_THAT(tail->All(), ElementsAre("1.0 b"));
}

TEST_F(LogReactorTest, TheEventLogIsReadFromTheWorkerOfRankZeroWhateverRankIsNamed) {
  const std::string job = Run(2);
  d1_.AddLine(1, 0, "output");
  d1_.AddLine(1, kEvents, "event");
  d2_.AddLine(1, kEvents, "of a worker without rank 0");
  v1::StreamLogsRequest request;
  request.set_job(job);
  request.set_rank(-1);
  request.set_events(true);
  Stream stream;
  stream.reader = stub_->StreamLogs(&stream.context, request);
  EXPECT_THAT(stream.All(), ElementsAre("1.0 event"));
  EXPECT_TRUE(stream.reader->Finish().ok());
}

TEST_F(LogReactorTest, FollowingContinuesAcrossAttemptsUntilTheJobIsFinished) {
  const std::string job = coordinator_.Submit(2);
  auto stream = Open(job, -1, true);  // before there is any attempt
  coordinator_.Tick();
  w1_.Obey();
  w2_.Obey();
  d1_.AddLine(1, 0, "begins");
  EXPECT_EQ(stream->Next(), "1.0 begins");
  d2_.AddLine(1, 1, "too");
  EXPECT_EQ(stream->Next(), "1.1 too");
  d1_.AddLine(1, 0, "fails");
  Fail(w1_);
  d1_.EndRank(1, 0);
  d2_.EndRank(1, 1);
  EXPECT_EQ(stream->Next(), "1.0 fails");
  coordinator_.clock.Advance(6'000);
  ASSERT_EQ(w1_.Report(), absl::OkStatus());
  ASSERT_EQ(w2_.Report(), absl::OkStatus());
  coordinator_.Tick();
  ASSERT_EQ(coordinator_.Job(job).attempt().number(), 2);
  d1_.AddLine(2, 0, "again");
  EXPECT_EQ(stream->Next(), "2.0 again");
  d2_.AddLine(2, 1, "last");
  EXPECT_EQ(stream->Next(), "2.1 last");
  KillJob(job);
  d1_.EndRank(2, 0);
  d2_.EndRank(2, 1);
  EXPECT_EQ(stream->Next(), "end");
  EXPECT_TRUE(stream->reader->Finish().ok());
}

TEST_F(LogReactorTest, AnUnreachableWorkerIsNamedAfterTheLinesOfTheOthers) {
  const std::string job = Run(2);
  d2_.AddLine(1, 1, "c");
  d1_.Stop();
  auto stream = Open(job, -1);
  EXPECT_THAT(stream->All(), ElementsAre("1.1 c"));
  const grpc::Status status = stream->reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("worker w1"));
}

TEST_F(LogReactorTest, ASilentWorkerIsGivenUp) {
  const std::string job = Run(1);
  d1_.AddLine(1, 0, "a");
  d1_.BeSilent();
  auto stream = Open(job, 0);
  EXPECT_THAT(stream->All(), ElementsAre());
  const grpc::Status status = stream->reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("silent"));
}

TEST_F(LogReactorTest, UnknownJobsAttemptsAndRanksAreRefusedByName) {
  const std::string job = Run(1);
  const auto refusal = [this](const std::string& of, int32_t rank, int64_t attempt, int32_t tail) {
    auto stream = Open(of, rank, false, attempt, tail);
    EXPECT_EQ(stream->Next(), "end");
    return stream->reader->Finish();
  };
  EXPECT_EQ(refusal("train-99", 0, 0, 0).error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(refusal(job, 0, 2, 0).error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(refusal(job, 0, 1, 0).error_code(), StatusCode::NOT_FOUND);  // the worker has no log
  EXPECT_EQ(refusal(job, 1, 1, 0).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refusal(job, -2, 1, 0).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refusal(job, 0, -1, 0).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refusal(job, 0, 1, -1).error_code(), StatusCode::INVALID_ARGUMENT);
  const std::string queued = coordinator_.Submit(8);
  EXPECT_EQ(refusal(queued, 0, 0, 0).error_code(), StatusCode::NOT_FOUND);
}

class TwoLogStreamsTest : public LogReactorTest {
 protected:
  TwoLogStreamsTest() : LogReactorTest(2) {}
};

TEST_F(TwoLogStreamsTest, TheNumberOfOpenLogStreamsIsBounded) {
  const std::string job = Run(1);
  d1_.AddLine(1, 0, "a");
  auto first = Open(job, 0, true);
  auto second = Open(job, 0, true);
  EXPECT_EQ(first->Next(), "1.0 a");
  EXPECT_EQ(second->Next(), "1.0 a");
  auto third = Open(job, 0, true);
  EXPECT_EQ(third->Next(), "end");
  EXPECT_EQ(third->reader->Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  KillJob(job);
  d1_.EndRank(1, 0);
  EXPECT_EQ(first->Next(), "end");
  EXPECT_TRUE(first->reader->Finish().ok());
  // The server counts a stream as ended soon after its caller does.
  std::string message;
  for (int i = 0; i < 1000 && message != "1.0 a"; ++i) message = Open(job, 0)->Next();
  EXPECT_EQ(message, "1.0 a");
}

TEST_F(LogReactorTest, ALineThatWaitsForASlowCallerOutlivesItsReader) {
  const std::string job = Run(1);
  // More than gRPC buffers for a caller that does not read: later lines wait in the coordinator.
  const std::string large(size_t{3} << 20, 'x');
  auto stream = Open(job, 0, true);
  d1_.AddLine(1, 0, large);
  ASSERT_TRUE(d1_.WaitUntilSent(1));
  d1_.AddLine(1, 0, "last");
  d1_.EndRank(1, 0);
  ASSERT_TRUE(d1_.WaitUntilSent(2));
  ASSERT_TRUE(d1_.WaitUntilUnread());
  KillJob(job);
  EXPECT_EQ(stream->Next().size(), large.size() + 4);
  EXPECT_EQ(stream->Next(), "1.0 last");
  EXPECT_EQ(stream->Next(), "end");
  EXPECT_TRUE(stream->reader->Finish().ok());
}

TEST_F(LogReactorTest, ACallerWhoTakesNothingIsCutOffByName) {
  const std::string job = Run(1);
  auto stalled = Open(job, 0, true), reading = Open(job, 0, true);
  const std::string large(size_t{3} << 20, 'x');
  d1_.AddLine(1, 0, large);
  ASSERT_TRUE(d1_.WaitUntilSent(2));
  EXPECT_EQ(reading->Next().size(), large.size() + 4);
  // The worker has more for it, which is not asked for.
  d1_.AddLine(1, 0, "more");
  EXPECT_EQ(reading->Next(), "1.0 more");
  // Time passes while the line waits, until the worker is no longer read for it.
  const auto end = std::chrono::steady_clock::now() + kLogDeadline;
  while (d1_.reading() > 1 && std::chrono::steady_clock::now() < end) {
    coordinator_.clock.Advance(10'000);
    (void)d1_.AwaitChange();
  }
  EXPECT_EQ(d1_.reading(), 1);
  EXPECT_EQ(stalled->Next().size(), large.size() + 4);
  EXPECT_EQ(stalled->Next(), "end");
  const grpc::Status status = stalled->reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("the log stream reads too slowly"));
  EXPECT_THAT(status.error_message(), HasSubstr("allowed: 120000"));
  // A caller for whom nothing waits is no slow reader.
  d1_.AddLine(1, 0, "later");
  EXPECT_EQ(reading->Next(), "1.0 later");
}

class OneLogStreamTest : public LogReactorTest {
 protected:
  OneLogStreamTest() : LogReactorTest(1, /*reason_ms=*/50) {}
};

TEST_F(OneLogStreamTest, ACallerWhoReadsNoMoreLosesItsPlaceAndIsStillToldWhy) {
  const std::string job = Run(1);
  auto stalled = Open(job, 0, true);
  d1_.AddLine(1, 0, std::string(size_t{3} << 20, 'x'));
  ASSERT_TRUE(d1_.WaitUntilSent(1));
  EXPECT_EQ(Open(job, 0, false, 0, 1)->reader->Finish().error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  const auto end = std::chrono::steady_clock::now() + kLogDeadline;
  std::string message;
  while (message.empty() && std::chrono::steady_clock::now() < end) {
    coordinator_.clock.Advance(10'000);
    auto next = Open(job, 0, true);
    if (const std::string line = next->Next(); line != "end") message = line;
  }
  EXPECT_EQ(message.size(), (size_t{3} << 20) + 4);
  // The line that waited was dropped.
  EXPECT_THAT(stalled->All(), ElementsAre());
  const grpc::Status status = stalled->reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("the log stream reads too slowly"));
}

TEST_F(LogReactorTest, ACancelledStreamCancelsItsReadsOfTheWorker) {
  const std::string job = Run(1);
  d1_.AddLine(1, 0, "a");
  for (int i = 0; i < 20; ++i) {
    auto stream = Open(job, 0, true);
    stream->Next();
    stream->context.TryCancel();
    stream->reader->Finish();
  }
  EXPECT_TRUE(d1_.WaitUntilUnread());
}

}  // namespace
}  // namespace nibble
