#include "worker/agent/peer_server.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/rank_log.grpc.pb.h"
#include "worker/agent/own_paths.h"
#include "worker/agent/rank_log.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using Lines = std::vector<std::string>;

class LogServiceTest : public testing::Test {
 protected:
  explicit LogServiceTest(const ReaderLimits& limits = {.most = 2}) {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    Create(int64_t{1} << 20);
    std::vector<PeerService> services;
    services.push_back(MakeLogService(
        [this](const std::string& job, int64_t attempt,
               int32_t rank) -> absl::StatusOr<std::shared_ptr<const RankLog>> {
          if (job == "run-1" && attempt == 1 && rank == 0) return log_;
          return absl::NotFoundError("no such log");
        },
        [this](const std::string&, int64_t attempt) -> absl::StatusOr<EventFile> {
          return EventFile{.path = directory_ + "/events.jsonl",
                           .started = attempt == 1,
                           .ended = [this] { return log_->ended(); }};
        },
        [this](const std::string&, int64_t attempt, int64_t steps,
               const std::function<bool()>&) -> absl::StatusOr<std::string> {
          if (attempt != 1) return absl::FailedPreconditionError("no ranks run");
          std::ofstream(directory_ + "/trace") << "[\n{\"steps\":" << steps << "}\n]\n";
          return directory_ + "/trace";
        },
        limits));
    auto server = PeerServer::Start(
        "127.0.0.1:0", {}, std::move(services), nullptr,
        std::make_shared<OwnPaths>(std::vector{directory_}, [this](const std::string& text) {
          const MutexLock lock(&hidden_mutex_);
          hidden_.push_back(text);
        }));
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::RankLogs::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  ~LogServiceTest() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  void Create(int64_t file_bytes) {
    auto log = RankLog::Create(directory_ + "/rank-0.log", {.file_bytes = file_bytes});
    EXPECT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
  }
  static v1::ReadRankLogRequest Request(int32_t tail = 0, bool follow = false) {
    v1::ReadRankLogRequest request;
    request.set_job("run-1");
    request.set_attempt(1);
    request.set_tail_lines(tail);
    request.set_follow(follow);
    return request;
  }
  grpc::Status Read(const v1::ReadRankLogRequest& request, Lines& lines,
                    int64_t* dropped = nullptr) {
    grpc::ClientContext context;
    const auto reader = stub_->ReadRankLog(&context, request);
    v1::ReadRankLogResponse response;
    while (reader->Read(&response)) {
      lines.insert(lines.end(), response.lines().begin(), response.lines().end());
      if (dropped != nullptr) *dropped += response.dropped_bytes();
    }
    return reader->Finish();
  }

  std::string directory_ = testing::TempDir() + "/logs-XXXXXX";
  std::shared_ptr<RankLog> log_;
  std::unique_ptr<PeerServer> server_;
  std::unique_ptr<v1::RankLogs::Stub> stub_;
  Mutex hidden_mutex_;
  std::vector<std::string> hidden_ ABSL_GUARDED_BY(hidden_mutex_);  // texts with paths
};

TEST_F(LogServiceTest, LinesAreSentWithoutNewlinesAndTheLastMayHaveNone) {
  log_->Append("one\n\nthree\nfour");
  Lines lines;
  EXPECT_TRUE(Read(Request(), lines).ok());
  EXPECT_THAT(lines, ElementsAre("one", "", "three", "four"));
}

TEST_F(LogServiceTest, ATailIsTheLastLines) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) absl::StrAppend(&text, "line ", i, "\n");
  log_->Append(text);
  for (const int tail : {1, 3, 9'000}) {
    Lines lines;
    EXPECT_TRUE(Read(Request(tail), lines).ok());
    ASSERT_EQ(lines.size(), static_cast<size_t>(tail));
    EXPECT_EQ(lines.front(), absl::StrCat("line ", 20'000 - tail));
    EXPECT_EQ(lines.back(), "line 19999");
  }
  Lines all;
  EXPECT_TRUE(Read(Request(50'000), all).ok());
  EXPECT_EQ(all.size(), 20'000u);
}

TEST_F(LogServiceTest, AFollowerReceivesLinesUntilTheRankHasEnded) {
  log_->Append("first\n");
  grpc::ClientContext context;
  const auto reader = stub_->ReadRankLog(&context, Request(0, true));
  v1::ReadRankLogResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_THAT(Lines(response.lines().begin(), response.lines().end()), ElementsAre("first"));
  log_->Append("seco");
  log_->Append("nd\nlast");
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.lines(0), "second");
  log_->End();
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.lines(0), "last");
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(LogServiceTest, AnEventLogIsReadInWholeLinesUntilRankZeroHasEnded) {
  v1::ReadRankLogRequest request = Request(0, true);
  request.set_events(true);
  Lines lines;
  EXPECT_EQ(Read(request, lines).error_code(), grpc::StatusCode::NOT_FOUND);  // there is no file
  std::ofstream events(directory_ + "/events.jsonl");
  events << "{\"spec\":\"" << std::string(kMaxLineBytes * 2, 'y')
         << "\"}\n{\"step\":" << std::flush;
  request.set_follow(false);
  EXPECT_TRUE(Read(request, lines).ok());
  ASSERT_EQ(lines.size(), 1u);  // the second one is being written
  EXPECT_GT(lines[0].size(), kMaxLineBytes * 2);

  request.set_follow(true);
  request.set_attempt(2);
  EXPECT_EQ(Read(request, lines).error_code(), grpc::StatusCode::NOT_FOUND);  // has not started
  request.set_attempt(1);
  grpc::ClientContext context;
  const auto reader = stub_->ReadRankLog(&context, request);
  v1::ReadRankLogResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.lines_size(), 1);
  events << "7}\n" << std::flush;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_THAT(response.lines(), ElementsAre("{\"step\":7}"));
  log_->End();
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(LogServiceTest, ATraceIsSentInLinesAndItsFileRemoved) {
  v1::ReadRankLogRequest request = Request();
  request.set_trace_steps(3);
  Lines lines;
  EXPECT_TRUE(Read(request, lines).ok());
  EXPECT_THAT(lines, ElementsAre("[", "{\"steps\":3}", "]"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/trace"));
  request.set_attempt(2);
  EXPECT_EQ(Read(request, lines).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  request.set_attempt(1);
  request.set_trace_steps(kMaxTraceSteps + 1);
  EXPECT_EQ(Read(request, lines).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(LogServiceTest, ASlowReaderDoesNotDelayTheRankAndLearnsWhatItMissed) {
  Create(4096);
  log_->Append("begin\n");
  grpc::ClientContext context;
  const auto reader = stub_->ReadRankLog(&context, Request(0, true));
  v1::ReadRankLogResponse response;
  ASSERT_TRUE(reader->Read(&response));
  // Far more than the log keeps and the connection buffers, without a reader.
  const std::string line = std::string(1000, 'x') + "\n";
  for (int i = 0; i < 20'000; ++i) log_->Append(line);
  log_->Append("end\n");
  log_->End();
  std::string last;
  bool told = false;
  while (reader->Read(&response)) {
    for (const std::string& one : response.lines()) {
      told |= one.find("bytes are no longer kept]") != std::string::npos;
      last = one;
    }
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(told);
  EXPECT_EQ(last, "end");
}

TEST_F(LogServiceTest, BinaryOutputAndEndlessLinesAreSentAsText) {
  log_->Append("caf\xc3\xa9 \xff\xfe \xed\xa0\x80\n" + std::string(kMaxLineBytes + 10, 'y') + "\n");
  Lines lines;
  EXPECT_TRUE(Read(Request(), lines).ok());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "caf\xc3\xa9 ?? ???");
  EXPECT_EQ(lines[1].size(), kMaxLineBytes);
  EXPECT_EQ(lines[2].size(), 10u);
}

TEST_F(LogServiceTest, ALogOfAnEarlierLifeIsReadWithTheNumberOfDiscardedBytes) {
  Create(100);
  for (int i = 0; i < 50; ++i) log_->Append(absl::StrCat("line ", i, "\n"));
  const int64_t gone = log_->begin();
  auto ended = RankLog::OpenEnded(directory_ + "/rank-0.log");
  ASSERT_TRUE(ended.ok()) << ended.status();
  log_ = *std::move(ended);
  Lines lines;
  int64_t dropped = 0;
  EXPECT_TRUE(Read(Request(0, true), lines, &dropped).ok());
  EXPECT_EQ(lines.back(), "line 49");
  EXPECT_GT(gone, 0);
  EXPECT_EQ(dropped, gone);
  EXPECT_EQ(RankLog::OpenEnded(directory_ + "/none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(LogServiceTest, ARequestThatIsNoMessageIsAnInvalidArgumentOfItsCall) {
  const std::string noise("\x0a\xff\xff\xff\x7f noise", 11);
  const char* const call = "/nibble.v1.RankLogs/ReadRankLog";
  grpc::GenericStub stub(
      grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok);
  };
  const auto sent = stub.PrepareCall(&context, call, &queue);
  sent->StartCall(nullptr);
  ASSERT_TRUE(next());
  const grpc::Slice bytes(noise);
  sent->WriteLast(grpc::ByteBuffer(&bytes, 1), {}, nullptr);
  ASSERT_TRUE(next());
  grpc::Status status;
  sent->Finish(&status, nullptr);
  ASSERT_TRUE(next());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr(call));
  // A message that is one, of nothing.
  Lines lines;
  EXPECT_EQ(Read({}, lines).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(LogServiceTest, AnErrorNamesNoPathOfTheWorkerAndItsLogDoes) {
  // A directory cannot be read as a file.
  std::filesystem::create_directory(directory_ + "/events.jsonl");
  v1::ReadRankLogRequest request = Request();
  request.set_events(true);
  Lines lines;
  const grpc::Status status = Read(request, lines);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.error_message(), HasSubstr("events.jsonl"));
  EXPECT_THAT(status.error_message(), Not(HasSubstr(directory_)));
  const MutexLock lock(&hidden_mutex_);
  EXPECT_THAT(hidden_, ElementsAre(HasSubstr(directory_ + "/events.jsonl")));
}

TEST_F(LogServiceTest, InvalidRequestsAndTooManyReadersAreRefused) {
  Lines lines;
  v1::ReadRankLogRequest request = Request();
  request.set_rank(5);
  EXPECT_EQ(Read(request, lines).error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_rank(-1);
  EXPECT_EQ(Read(request, lines).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  log_->Append("x\n");
  grpc::ClientContext one, two;
  v1::ReadRankLogResponse response;
  const auto first = stub_->ReadRankLog(&one, Request(0, true));
  const auto second = stub_->ReadRankLog(&two, Request(0, true));
  ASSERT_TRUE(first->Read(&response));
  ASSERT_TRUE(second->Read(&response));
  EXPECT_EQ(Read(Request(), lines).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  log_->End();
  EXPECT_FALSE(first->Read(&response));
  EXPECT_FALSE(second->Read(&response));
}

class StalledReaderTest : public LogServiceTest {
 protected:
  using Time = std::shared_ptr<std::atomic<int64_t>>;
  static constexpr size_t kPlaces = 2;

  explicit StalledReaderTest(const Time& now_ms = std::make_shared<std::atomic<int64_t>>(0))
      : LogServiceTest({.most = kPlaces,
                        .stall_ms = 120'000,
                        .look_ms = 10,
                        .now_ms = [now_ms] { return now_ms->load(); }}),
        now_ms_(now_ms) {
    Create(int64_t{64} << 20);
    for (int i = 0; i < 1024; ++i) log_->Append(std::string(kMaxLineBytes - 1, 'x') + "\n");
  }

  const Time now_ms_;
};

TEST_F(StalledReaderTest, AReaderThatTakesNothingLosesItsPlaceAndIsToldWhy) {
  grpc::ClientContext contexts[kPlaces];
  std::unique_ptr<grpc::ClientReader<v1::ReadRankLogResponse>> stalled[kPlaces];
  v1::ReadRankLogResponse response;
  // Else gRPC would take up to 16 MiB for a reader that does not read.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub = v1::RankLogs::NewStub(
      grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments));
  for (size_t i = 0; i < kPlaces; ++i) stalled[i] = stub->ReadRankLog(&contexts[i], Request());
  for (const auto& reader : stalled) ASSERT_TRUE(reader->Read(&response));
  // They have all places, until one loses its own. No time passes while an honest reader reads.
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  grpc::Status honest;
  do {
    *now_ms_ += 10'000;
    Lines lines;
    honest = Read(Request(1), lines);
  } while (!honest.ok() && std::chrono::steady_clock::now() < end);
  EXPECT_TRUE(honest.ok()) << honest.error_message();
  int cut = 0;
  for (const auto& reader : stalled) {
    while (reader->Read(&response)) {
    }
    const grpc::Status status = reader->Finish();
    if (status.ok()) continue;  // only the other one was cut off in time
    ++cut;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("the reader of logs reads too slowly"));
    EXPECT_THAT(status.error_message(), HasSubstr("allowed: 120000"));
  }
  EXPECT_GE(cut, 1);
}

TEST_F(StalledReaderTest, AFollowerThatTakesEachLineKeepsItsPlace) {
  Create(int64_t{1} << 20);
  log_->Append("first\n");
  grpc::ClientContext context;
  const auto reader = stub_->ReadRankLog(&context, Request(0, true));
  v1::ReadRankLogResponse response;
  ASSERT_TRUE(reader->Read(&response));
  for (int i = 1; i <= 20; ++i) {
    *now_ms_ += 100'000;  // a write ends before the second line after it is read
    log_->Append(absl::StrCat("line ", i, "\n"));
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_THAT(response.lines(), ElementsAre(absl::StrCat("line ", i)));
  }
  log_->End();
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

}  // namespace
}  // namespace nibble
