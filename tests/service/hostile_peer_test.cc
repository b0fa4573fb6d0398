// Hostile clients against the coordinator's program: bytes that are no calls, silent streams,
// cancelled calls, and responses that are never read. The program survives, answers other clients,
// and its memory stays bounded.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/exposition_testing.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "proto/nibble/v1/worker_link.grpc.pb.h"
#include "tests/service/coordinator_process.h"

namespace nibble {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

constexpr std::chrono::seconds kDeadline(60);
// Growth of memory allowed after thousands of bad calls: buffers of gRPC and the allocator, no
// calls.
constexpr int64_t kMostGrowth = int64_t{96} << 20;

class HostilePeerTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "hostile_XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override {
    coordinator_.reset();
    std::filesystem::remove_all(root_);
  }

  void Serve(const std::vector<std::string>& flags = {}, const std::string& http = "") {
    auto started = CoordinatorProcess::Start(
        {.program = CoordinatorProgram(), .store = root_ + "/store", .flags = flags, .http = http});
    ASSERT_EQ(started.status(), absl::OkStatus());
    coordinator_ = *std::move(started);
    stub_ = v1::Coordinator::NewStub(coordinator_->Connect());
    CheckThatItServes();
  }

  static std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + kDeadline);
    return context;
  }

  void CheckThatItServes() {
    ASSERT_TRUE(coordinator_->Lives()) << coordinator_->OutputText();
    v1::ListJobsResponse listed;
    const grpc::Status status =
        v1::Coordinator::NewStub(coordinator_->Connect())->ListJobs(Context().get(), {}, &listed);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  // `labels`: the number of labels of 1 KiB each, which make every message about the job large.
  std::string Submit(const std::string& id, int labels = 0) {
    v1::SubmitJobRequest request;
    request.set_request_id(id);
    for (int i = 0; i < labels; ++i) {
      v1::Label& label = *request.mutable_scheduling()->add_preferred_labels();
      label.set_key(absl::StrCat("key", i));
      label.set_value(std::string(900, 'v'));
    }
    request.set_spec_yaml(
        "name: train\nmodel: tiny-hybrid\nrecipe: nvfp4\n"
        "data: {train: [corpus.txt], sequence: 128}\ntraining: {steps: 1000, batch: 16}\n");
    v1::SubmitJobResponse response;
    const grpc::Status status = stub_->SubmitJob(Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().id();
  }

  // A socket connected to the port, or -1.
  int Dial() const { return Dial(coordinator_->port()); }
  static int Dial(int port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return fd;
    (void)close(fd);
    return -1;
  }

  // Sends as many of the bytes as the peer accepts, and waits until it closes the connection.
  void SendBytes(const std::string& bytes, bool wait) const {
    const int fd = Dial();
    ASSERT_GE(fd, 0);
    (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    (void)shutdown(fd, SHUT_WR);
    if (wait) {
      const timeval patience = {30, 0};
      (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      char buffer[4096];
      while (recv(fd, buffer, sizeof(buffer), 0) > 0) {
      }
    }
    (void)close(fd);
  }

  void ExpectBoundedGrowth(const std::function<void()>& run) {
    run();  // warm-up: one-time allocations such as threads and pools
    const int64_t before = coordinator_->RssBytes();
    for (int i = 0; i < 3; ++i) run();
    EXPECT_LT(coordinator_->RssBytes() - before, kMostGrowth) << "from " << before;
    CheckThatItServes();
  }

  std::string root_;
  std::unique_ptr<CoordinatorProcess> coordinator_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

TEST_F(HostilePeerTest, ConnectionsThatSendNoHttp2AreClosed) {
  Serve();
  std::mt19937_64 random(11);
  std::string noise(64 << 10, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const std::string settings("\0\0\0\4\0\0\0\0\0", 9);
  const std::vector<std::string> kinds = {
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "POST /nibble.v1.Coordinator/ListJobs HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + noise.substr(0, 500), noise,
      preface + noise, preface + settings + noise,
      // A frame with a length of 16 MiB, and headers that never end.
      preface + settings + std::string("\xff\xff\xff\x01\x00\x00\x00\x00\x01", 9) + noise,
      std::string(1, '\0'), ""};
  ExpectBoundedGrowth([&] {
    for (int round = 0; round < 20; ++round) {
      for (const std::string& bytes : kinds) SendBytes(bytes, round == 0);
    }
  });
}

TEST_F(HostilePeerTest, SilentConnectionsKeepNobodyOut) {
  Serve();
  std::vector<int> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(Dial());
  CheckThatItServes();
  Submit("request-1");
  for (const int fd : silent) {
    if (fd >= 0) (void)close(fd);
  }
  CheckThatItServes();
}

TEST_F(HostilePeerTest, HalfRequestsDoNotDelayProbes) {
  Serve({}, "127.0.0.1:0");
  constexpr char kHalf[] = "GET /readyz HTTP/1.1\r\nHost: x\r\nX-Slow: ";
  std::vector<int> half;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) {
    half.push_back(Dial(coordinator_->http_port()));
    ASSERT_GE(half.back(), 0);
    ASSERT_GT(send(half.back(), kHalf, sizeof(kHalf) - 1, MSG_NOSIGNAL), 0);
  }
  EXPECT_EQ(HttpGet(coordinator_->http_port(), "/readyz").status(), absl::OkStatus());
  // When each connection occupied one of eight threads for two seconds, this took 50 seconds.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  for (const int fd : half) (void)close(fd);
}

TEST_F(HostilePeerTest, SilentWorkerStreamsEndAndAreBounded) {
  Serve({"--lease-ms", "3000", "--max-workers", "50", "--tick-ms", "20"});
  const auto link = v1::WorkerLink::NewStub(coordinator_->Connect());
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::ConnectRequest, v1::ConnectResponse>>>
      streams;
  for (int i = 0; i < 80; ++i) {
    contexts.push_back(Context());
    streams.push_back(link->Connect(contexts.back().get()));
  }
  int over_time = 0, over_number = 0;
  for (const auto& stream : streams) {
    v1::ConnectResponse desired;
    EXPECT_FALSE(stream->Read(&desired));
    const grpc::Status status = stream->Finish();
    over_time += status.error_code() == StatusCode::DEADLINE_EXCEEDED &&
                 status.error_message().find("no report") != std::string::npos;
    over_number += status.error_code() == StatusCode::RESOURCE_EXHAUSTED;
  }
  // If opening them takes longer than a lease, the first ones have ended before the last.
  EXPECT_EQ(over_time + over_number, 80);
  EXPECT_GE(over_time, 50);
  EXPECT_GT(over_number, 0);
  // Their slots are free again as soon as the last of them has ended.
  v1::ConnectRequest report;
  v1::WorkerIdentity& identity = *report.mutable_identity();
  identity.set_name("w1");
  identity.set_incarnation(1);
  identity.set_address("w1:7000");
  identity.set_slots(1);
  identity.mutable_hardware()->set_device(v1::DEVICE_CPU);
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  bool taken = false;
  while (!taken && std::chrono::steady_clock::now() < end) {
    auto context = Context();
    auto stream = link->Connect(context.get());
    v1::ConnectResponse desired;
    taken = stream->Write(report) && stream->Read(&desired);
    // A refused stream has ended by itself, with the reason.
    if (taken) context->TryCancel();
    const StatusCode code = stream->Finish().error_code();
    EXPECT_TRUE(taken || code == StatusCode::RESOURCE_EXHAUSTED) << code;
  }
  EXPECT_TRUE(taken);
}

TEST_F(HostilePeerTest, ThousandsOfCancelledCallsLeaveNothingBehind) {
  Serve({"--max-watches", "20", "--max-waits", "20", "--max-log-streams", "20"});
  const std::string job = Submit("request-1");
  v1::WaitJobRequest wait;
  wait.set_job(job);
  v1::StreamLogsRequest logs;
  logs.set_job(job);
  logs.set_follow(true);
  ExpectBoundedGrowth([&] {
    for (int i = 0; i < 1000; ++i) {
      auto context = Context();
      const auto watch = stub_->WatchJobs(context.get(), {});
      v1::WatchJobsResponse message;
      if (i % 2 == 0) watch->Read(&message);
      context->TryCancel();
      watch->Finish();
      context = Context();
      const auto lines = stub_->StreamLogs(context.get(), logs);
      context->TryCancel();
      lines->Finish();
      grpc::ClientContext waiting;
      waiting.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(1));
      v1::WaitJobResponse waited;
      stub_->WaitJob(&waiting, wait, &waited);
    }
  });
  // None of them counts any longer: the full number of watches can be opened.
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchJobsResponse>>> watches;
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (watches.size() < 20 && std::chrono::steady_clock::now() < end) {
    auto context = Context();
    auto watch = stub_->WatchJobs(context.get(), {});
    v1::WatchJobsResponse message;
    if (!watch->Read(&message)) {  // the last of the cancelled ones are still ending
      EXPECT_EQ(watch->Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
      continue;
    }
    contexts.push_back(std::move(context));
    watches.push_back(std::move(watch));
  }
  EXPECT_EQ(watches.size(), 20u);
  for (const auto& context : contexts) context->TryCancel();
}

TEST_F(HostilePeerTest, UnreadWatchesAreCutAndCostBoundedMemory) {
  Serve({"--max-watch-buffer-bytes", "1000000", "--watch-stall-ms", "60000"});
  const std::string job = Submit("request-1", 50);
  // The client's buffers are small, so that unread data stays in the server.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 16);
  const auto slow = v1::Coordinator::NewStub(grpc::CreateCustomChannel(
      coordinator_->address(), grpc::InsecureChannelCredentials(), arguments));
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchJobsResponse>>> watches;
  for (int i = 0; i < 20; ++i) {
    contexts.push_back(Context());
    watches.push_back(slow->WatchJobs(contexts.back().get(), {}));
    v1::WatchJobsResponse message;
    while (!message.caught_up()) ASSERT_TRUE(watches.back()->Read(&message));
  }
  const int64_t before = coordinator_->RssBytes();
  v1::SetJobPriorityRequest change;
  change.set_job(job);
  constexpr int kChanges = 300;
  for (int i = 0; i < kChanges; ++i) {
    change.set_request_id(absl::StrCat("request-change-", i));
    change.set_priority(i % 1000);
    v1::SetJobPriorityResponse changed;
    const grpc::Status status = stub_->SetJobPriority(Context().get(), change, &changed);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_LT(coordinator_->RssBytes() - before, kMostGrowth);
  int cut = 0;
  for (size_t i = 0; i < watches.size(); ++i) {
    v1::WatchJobsResponse message;
    int64_t read = 0;
    while (read < 2 * kChanges && watches[i]->Read(&message)) ++read;
    if (read == 2 * kChanges) contexts[i]->TryCancel();  // it has received everything
    cut += watches[i]->Finish().error_code() == StatusCode::RESOURCE_EXHAUSTED;
  }
  EXPECT_EQ(cut, 20);
  CheckThatItServes();
}

TEST_F(HostilePeerTest, AClientAboveTheRateIsRefusedAndToldWhenToRetry) {
  Serve({"--requests-per-second", "50", "--request-burst", "100"});
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    v1::ListJobsResponse listed;
    const grpc::Status status = stub_->ListJobs(Context().get(), {}, &listed);
    if (status.ok()) continue;
    ++refused;
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("retry in"));
  }
  EXPECT_GT(refused, 0);
  EXPECT_TRUE(coordinator_->Lives());
  EXPECT_EQ(coordinator_->End(), 0);
}

}  // namespace
}  // namespace nibble
