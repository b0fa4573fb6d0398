// Floods from one identity, beside callers that keep to their rate. What is judged here holds on a
// machine of any speed: how much of a flood is dealt with, what it costs in memory, and that nobody
// else is refused. What it costs others in time is measured by bench/control/flood_bench.cc.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "tests/processes/processes.h"
#include "tests/security/secure_coordinator.h"

namespace nibble {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;
using FloodClock = std::chrono::steady_clock;

constexpr double kRate = 200;      // served per second of one identity
constexpr double kRefusals = 500;  // RateLimits::refusals_per_second
constexpr int kFloodConnections = 8;

double Seconds(FloodClock::duration time) { return std::chrono::duration<double>(time).count(); }

// An identity that makes many calls at once, and another one whenever one ends.
class CallFlood {
 public:
  // `patience`: after it a call is given up; 0: it waits for its answer.
  CallFlood(const SecureCoordinator& coordinator, std::string token, int calls,
            std::chrono::milliseconds patience)
      : token_(std::move(token)), patience_(patience), open_(calls) {
    for (int i = 0; i < kFloodConnections; ++i) {
      stubs_.push_back(v1::Coordinator::NewStub(coordinator.Connect()));
    }
    for (int i = 0; i < calls; ++i) Call(i);
  }
  ~CallFlood() { Stop(); }

  // Returns when its last call has ended.
  void Stop() {
    stopping_ = true;
    const MutexLock lock(&mutex_);
    while (open_ > 0) changed_.Wait(&mutex_);
  }
  int64_t served() const { return served_; }
  int64_t refused() const { return refused_; }

 private:
  struct OneCall {
    std::unique_ptr<grpc::ClientContext> context;
    v1::ListJobsRequest request;
    v1::ListJobsResponse listed;
  };

  void Call(int number) {
    auto call = std::make_shared<OneCall>();
    call->context = CallWith(token_);
    if (patience_.count() > 0) {
      call->context->set_deadline(std::chrono::system_clock::now() + patience_);
      // Else calls without a connection would fail at once.
      call->context->set_wait_for_ready(true);
    }
    OneCall* const one = call.get();
    stubs_[static_cast<size_t>(number % kFloodConnections)]->async()->ListJobs(
        one->context.get(), &one->request, &one->listed,
        [this, number, call = std::move(call)](const grpc::Status& status) {
          served_ += status.ok();
          refused_ += status.error_code() == StatusCode::RESOURCE_EXHAUSTED;
          if (!stopping_) return Call(number);
          const MutexLock lock(&mutex_);
          --open_;
          changed_.SignalAll();
        });
  }

  const std::string token_;
  const std::chrono::milliseconds patience_;
  std::vector<std::unique_ptr<v1::Coordinator::Stub>> stubs_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> served_ = 0, refused_ = 0;
  Mutex mutex_;
  CondVar changed_;
  int open_ ABSL_GUARDED_BY(mutex_);
};

class FloodAttackTest : public testing::Test {
 protected:
  FloodAttackTest() {
    EXPECT_TRUE(List(*honest_stub_, honest_).ok());
    before_bytes_ = coordinator_.process().RssBytes();
  }

  static grpc::Status List(v1::Coordinator::Stub& stub, const std::string& token) {
    v1::ListJobsResponse listed;
    return stub.ListJobs(CallWith(token).get(), {}, &listed);
  }
  // An honest caller calls until the condition holds; each of its calls is served. Returns how long
  // that took.
  template <class Condition>
  FloodClock::duration CallHonestlyUntil(Condition condition) {
    const auto start = FloodClock::now();
    EXPECT_TRUE(Eventually([&] {
      const grpc::Status status = List(*honest_stub_, honest_);
      EXPECT_TRUE(status.ok()) << status.error_message();
      most_bytes_ = std::max(most_bytes_, coordinator_.process().RssBytes());
      return condition();
    }));
    return FloodClock::now() - start;
  }
  // Refusals that the coordinator has counted.
  int64_t Refused() const {
    const std::string page = coordinator_.Metrics();
    constexpr absl::string_view kName = "nibble_audited_calls_total{outcome=\"refused\"} ";
    const size_t at = page.find(std::string(kName));
    int64_t count = 0;
    if (at == std::string::npos) return count;
    const size_t from = at + kName.size();
    EXPECT_TRUE(absl::SimpleAtoi(page.substr(from, page.find('\n', from) - from), &count));
    return count;
  }

  SecureCoordinator coordinator_{3600, {"--requests-per-second=200", "--request-burst=200"}};
  const std::string honest_ = coordinator_.MakeToken("honest", v1::ROLE_SUBMITTER);
  const std::string flooding_ = coordinator_.MakeToken("eve", v1::ROLE_SUBMITTER);
  const std::unique_ptr<v1::Coordinator::Stub> honest_stub_ =
      v1::Coordinator::NewStub(coordinator_.Connect());
  int64_t before_bytes_ = 0, most_bytes_ = 0;
};

TEST_F(FloodAttackTest, WhoIsRefusedOnceHearsOfItAndIsServedLater) {
  // As fast as one call after the other can be.
  grpc::Status status;
  const auto start = FloodClock::now();
  while (status.ok() && FloodClock::now() - start < std::chrono::minutes(1)) {
    status = List(*honest_stub_, flooding_);
  }
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(),
              HasSubstr("requests of caller eve: allowed: 200 per second; retry in "));
  EXPECT_TRUE(Eventually([&] { return List(*honest_stub_, flooding_).ok(); }));
}

TEST_F(FloodAttackTest, AFloodThatWaitsForItsAnswersIsSlowedDown) {
  constexpr int kCalls = 256;
  const auto start = FloodClock::now();
  CallFlood flood(coordinator_, flooding_, kCalls, std::chrono::milliseconds(0));
  // More than get lines of their own in the audit log.
  const double seconds = Seconds(CallHonestlyUntil([&] { return flood.refused() >= 2500; }));
  const int64_t served = flood.served(), refused = flood.refused();
  // Nobody is faster than its rate, in what it is given or in what it is refused.
  EXPECT_LE(static_cast<double>(served), kRate * (seconds + 2) + 200);
  EXPECT_LE(static_cast<double>(refused), kRefusals * (seconds + 2) + kCalls);
  EXPECT_LT(most_bytes_ - before_bytes_, int64_t{64} << 20);
  EXPECT_GE(Refused(), refused);
  EXPECT_TRUE(coordinator_.Audited({"call", "/nibble.v1.Coordinator/ListJobs", "who", "eve",
                                    "outcome", "refused", "code", "RESOURCE_EXHAUSTED"}));
  // It has kept its connections.
  for (const auto& entry : coordinator_.Audit()) EXPECT_NE(entry.value("call", ""), "connection");
  flood.Stop();
  EXPECT_TRUE(Eventually([&] { return List(*honest_stub_, flooding_).ok(); }));
  // Every refusal has a line, or is counted in one.
  const int64_t counted = Refused();
  EXPECT_EQ(coordinator_.process().End(), 0);
  int64_t audited = 0, lines = 0;
  for (const auto& entry : coordinator_.Audit()) {
    if (entry.value("outcome", "") != "refused") continue;
    audited += entry.value("count", int64_t{1});
    ++lines;
  }
  EXPECT_EQ(audited, counted);
  // A burst of lines, some each second, and the counts.
  const double all_seconds = Seconds(FloodClock::now() - start) + 2;
  EXPECT_LE(static_cast<double>(lines), 2000 + 50 * all_seconds + all_seconds / 10 + 1);
  EXPECT_LT(lines, counted);
}

TEST_F(FloodAttackTest, AFloodThatGivesUpItsCallsLosesItsConnections) {
  CallFlood flood(coordinator_, flooding_, /*calls=*/512, std::chrono::milliseconds(200));
  const auto ended = [&] {
    int lines = 0;
    for (const auto& entry : coordinator_.Audit()) {
      lines += entry.value("call", "") == "connection" && entry.value("who", "") == "eve" &&
               absl::StrContains(entry.value("reason", ""), "its connection is closed");
    }
    return lines;
  };
  (void)CallHonestlyUntil([&] { return ended() >= kFloodConnections; });
  // Its address connects slowly from then on, so that little of the flood arrives.
  const int64_t before = Refused();
  const auto start = FloodClock::now();
  const int lines = ended();
  (void)CallHonestlyUntil([&] { return ended() >= lines + 4; });
  const double seconds = Seconds(FloodClock::now() - start);
  RecordProperty("refused_per_second",
                 std::to_string(static_cast<double>(Refused() - before) / seconds));
  EXPECT_LE(static_cast<double>(Refused() - before), 2 * kRefusals * (seconds + 2));
  EXPECT_LT(most_bytes_ - before_bytes_, int64_t{64} << 20);
  flood.Stop();
  // Others at that address get a connection in a while.
  const auto late = v1::Coordinator::NewStub(coordinator_.Connect());
  EXPECT_TRUE(Eventually([&] { return List(*late, honest_).ok(); }));
}

}  // namespace
}  // namespace nibble
