#include "worker/agent/log_service.h"

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/rank_log.grpc.pb.h"
#include "worker/agent/peer_server.h"
#include "worker/agent/rank_log.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using Lines = std::vector<std::string>;

class LogServiceTest : public testing::Test {
 protected:
  LogServiceTest() {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    Create(int64_t{1} << 20);
    std::vector<std::unique_ptr<grpc::Service>> services;
    services.push_back(MakeLogService(
        [this](const std::string& job, int64_t attempt,
               int32_t rank) -> absl::StatusOr<std::shared_ptr<const RankLog>> {
          if (job == "run-1" && attempt == 1 && rank == 0) return log_;
          return absl::NotFoundError("no such log");
        },
        {.readers = 2}));
    auto server = PeerServer::Start("127.0.0.1:0", {}, std::move(services));
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
};

TEST_F(LogServiceTest, LinesComeWithoutTheirEndsAndTheLastAlsoWithoutOne) {
  log_->Append("one\n\nthree\nfour");
  Lines lines;
  EXPECT_TRUE(Read(Request(), lines).ok());
  EXPECT_THAT(lines, ElementsAre("one", "", "three", "four"));
}

TEST_F(LogServiceTest, ATailHasItsLastLines) {
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

TEST_F(LogServiceTest, AFollowerHearsWhatComesUntilTheRankHasEnded) {
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

TEST_F(LogServiceTest, ASlowReaderDoesNotHoldUpTheRankAndIsToldWhatItMissed) {
  Create(4096);
  log_->Append("begin\n");
  grpc::ClientContext context;
  const auto reader = stub_->ReadRankLog(&context, Request(0, true));
  v1::ReadRankLogResponse response;
  ASSERT_TRUE(reader->Read(&response));
  // Far more than the log keeps and than the connection holds, with nobody reading.
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

TEST_F(LogServiceTest, WhatIsNoTextAndLinesWithoutEndAreStillALog) {
  log_->Append("caf\xc3\xa9 \xff\xfe \xed\xa0\x80\n" + std::string(kMaxLineBytes + 10, 'y') + "\n");
  Lines lines;
  EXPECT_TRUE(Read(Request(), lines).ok());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "caf\xc3\xa9 ?? ???");
  EXPECT_EQ(lines[1].size(), kMaxLineBytes);
  EXPECT_EQ(lines[2].size(), 10u);
}

TEST_F(LogServiceTest, ALogOfAnEarlierLifeIsReadAndSaysWhatIsGone) {
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

TEST_F(LogServiceTest, WrongRequestsAndOneReaderTooManyAreRefused) {
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

}  // namespace
}  // namespace nibble
