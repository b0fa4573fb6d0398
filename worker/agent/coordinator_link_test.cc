#include "worker/agent/coordinator_link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/worker_link.grpc.pb.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kLinkPatience(30);
constexpr std::chrono::milliseconds kLease(400);

// A coordinator that answers every report with its number, or ends the stream.
class TestCoordinator final : public v1::WorkerLink::Service {
 public:
  grpc::Status Connect(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ConnectResponse, v1::ConnectRequest>* stream) override {
    v1::ConnectRequest request;
    int64_t number = 0;
    while (stream->Read(&request)) {
      v1::ConnectResponse response;
      response.set_number(++number);
      response.set_lease_ms(kLease.count());
      {
        const MutexLock lock(&mutex_);
        requests_.push_back(request);
        if (!end_with_.ok()) return end_with_;
        changed_.SignalAll();
      }
      if (!stream->Write(response)) break;
    }
    return grpc::Status::OK;
  }
  void EndWith(const grpc::Status& status) {
    const MutexLock lock(&mutex_);
    end_with_ = status;
  }
  bool AwaitReports(size_t count) {
    const auto until = std::chrono::steady_clock::now() + kLinkPatience;
    const MutexLock lock(&mutex_);
    while (requests_.size() < count && !changed_.WaitUntil(&mutex_, until)) {
    }
    return requests_.size() >= count;
  }
  std::vector<v1::ConnectRequest> requests() {
    const MutexLock lock(&mutex_);
    return requests_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<v1::ConnectRequest> requests_ ABSL_GUARDED_BY(mutex_);
  grpc::Status end_with_ ABSL_GUARDED_BY(mutex_);
};

class CoordinatorLinkTest : public testing::Test {
 protected:
  void StartServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&coordinator_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void StopServer() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  void TearDown() override {
    link_.reset();
    if (server_ != nullptr) StopServer();
  }
  void Connect(milliseconds beat) {
    link_ = std::make_unique<CoordinatorLink>(
        CoordinatorLink::Options{.target = absl::StrCat("127.0.0.1:", port_),
                                 .beat = beat,
                                 .backoff = backoff_,
                                 .report =
                                     [this](int64_t number) {
                                       v1::ConnectRequest request;
                                       request.set_cluster(number == 1 ? "first" : "later");
                                       const MutexLock lock(&mutex_);
                                       request.set_desired_number(desired_);
                                       return request;
                                     },
                                 .desired =
                                     [this](const v1::ConnectResponse& response) {
                                       const MutexLock lock(&mutex_);
                                       desired_ = response.number();
                                       ++answers_;
                                       changed_.SignalAll();
                                     },
                                 .lost =
                                     [this](const absl::Status& status, milliseconds wait) {
                                       const MutexLock lock(&mutex_);
                                       lost_.push_back(status);
                                       longest_wait_ = std::max(longest_wait_, wait);
                                       changed_.SignalAll();
                                     }});
  }
  template <class Done>
  bool Await(Done done) {
    const auto until = std::chrono::steady_clock::now() + kLinkPatience;
    const MutexLock lock(&mutex_);
    while (!done()) {
      if (changed_.WaitUntil(&mutex_, until)) return done();
    }
    return true;
  }

  int port_ = 0;
  Backoff::Options backoff_ = {.first = milliseconds(10), .most = milliseconds(50)};
  TestCoordinator coordinator_;
  std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  CondVar changed_;
  int64_t desired_ = 0;
  int answers_ = 0;
  std::vector<absl::Status> lost_;
  milliseconds longest_wait_{0};
  std::unique_ptr<CoordinatorLink> link_;
};

TEST_F(CoordinatorLinkTest, EveryBeatSendsAReportAndTheFirstIsComplete) {
  StartServer();
  Connect(milliseconds(5));
  ASSERT_TRUE(coordinator_.AwaitReports(3));
  EXPECT_TRUE(Await([this] { return answers_ >= 2; }));
  EXPECT_EQ(coordinator_.requests()[0].cluster(), "first");
  EXPECT_EQ(coordinator_.requests()[1].cluster(), "later");
}

TEST_F(CoordinatorLinkTest, AChangeIsReportedBeforeTheNextBeat) {
  StartServer();
  Connect(std::chrono::hours(1));
  ASSERT_TRUE(Await([this] { return answers_ == 1; }));
  link_->ReportNow();
  ASSERT_TRUE(coordinator_.AwaitReports(2));
  EXPECT_EQ(coordinator_.requests()[1].desired_number(), 1);
}

TEST_F(CoordinatorLinkTest, ANewStreamBeginsWithACompleteReport) {
  StartServer();
  Connect(milliseconds(5));
  ASSERT_TRUE(coordinator_.AwaitReports(2));
  StopServer();
  ASSERT_TRUE(Await([this] { return !lost_.empty(); }));
  const size_t before = coordinator_.requests().size();
  StartServer();
  ASSERT_TRUE(coordinator_.AwaitReports(before + 1));
  EXPECT_EQ(coordinator_.requests()[before].cluster(), "first");
}

TEST_F(CoordinatorLinkTest, ARestartedCoordinatorIsFoundWithinItsLease) {
  backoff_ = {.first = milliseconds(10), .most = std::chrono::hours(1)};
  StartServer();
  Connect(milliseconds(5));
  ASSERT_TRUE(Await([this] { return answers_ > 0; }));
  StopServer();
  // Without the lease the waits would have grown beyond it by now.
  ASSERT_TRUE(Await([this] { return lost_.size() >= 12; }));
  const MutexLock lock(&mutex_);
  EXPECT_LE(longest_wait_, kLease / 4);
}

TEST_F(CoordinatorLinkTest, TheStatusOfAnEndedStreamIsReported) {
  coordinator_.EndWith({grpc::StatusCode::ABORTED, "incarnation 3 is known"});
  StartServer();
  Connect(milliseconds(5));
  ASSERT_TRUE(Await([this] { return !lost_.empty(); }));
  const MutexLock lock(&mutex_);
  EXPECT_EQ(lost_[0].code(), absl::StatusCode::kAborted);
  EXPECT_EQ(lost_[0].message(), "incarnation 3 is known");
}

TEST_F(CoordinatorLinkTest, ALinkWithoutACoordinatorEndsAtOnce) {
  port_ = 1;
  Connect(milliseconds(5));
  ASSERT_TRUE(Await([this] { return !lost_.empty(); }));
  link_.reset();
}

v1::CheckpointRef Ref(int64_t step) {
  v1::CheckpointRef ref;
  ref.set_job("train-1");
  ref.set_step(step);
  ref.set_attempt(1);
  return ref;
}
const absl::Status kDamage = absl::DataLossError("shard-00000.sst: chunk 3");

TEST(DamageReportsTest, DamageIsReportedUntilItIsAnswered) {
  int changes = 0;
  DamageReports reports([&] { ++changes; });
  reports.Found(Ref(10), 0, "w2", kDamage);
  reports.Found(Ref(10), 0, "w2", kDamage);
  EXPECT_EQ(changes, 1);
  ASSERT_EQ(reports.Report(5, true).size(), 1u);
  EXPECT_EQ(reports.Report(6, true).at(0).holder(), "w2");
  EXPECT_EQ(reports.Report(6, true).at(0).detail(), "shard-00000.sst: chunk 3");
  reports.Answered(4);
  EXPECT_EQ(reports.Report(7, true).size(), 1u);
  reports.Answered(5);
  EXPECT_TRUE(reports.Report(8, true).empty());
  // Found again, it is reported again: the holder may have fetched the shard anew.
  reports.Found(Ref(10), 0, "w2", kDamage);
  EXPECT_EQ(reports.Report(9, true).size(), 1u);
}

TEST(DamageReportsTest, ANewStreamRepeatsUnansweredDamage) {
  DamageReports reports(nullptr);
  reports.Found(Ref(10), 0, "w2", kDamage);
  EXPECT_EQ(reports.Report(7, true).size(), 1u);
  EXPECT_EQ(reports.Report(1, false).size(), 1u);
  EXPECT_EQ(reports.Report(2, true).size(), 1u);
  reports.Answered(2);
  EXPECT_TRUE(reports.Report(3, true).empty());
}

TEST(DamageReportsTest, DamageIsRepeatedOnceTheStreamHasOrderedAnything) {
  DamageReports reports(nullptr);
  reports.Found(Ref(10), 0, "w2", kDamage);
  EXPECT_EQ(reports.Report(1, false).size(), 1u);
  EXPECT_EQ(reports.Report(2, false).size(), 1u);
  reports.Answered(2);
  EXPECT_EQ(reports.Report(3, true).size(), 1u);
  reports.Answered(2);
  EXPECT_EQ(reports.Report(4, true).size(), 1u);
  reports.Answered(3);
  EXPECT_TRUE(reports.Report(5, true).empty());
}

TEST(DamageReportsTest, AShardWithADamagedReplicaIsRemembered) {
  DamageReports reports(nullptr);
  reports.Found(Ref(10), 1, "w2", kDamage);
  reports.Answered(100);
  EXPECT_TRUE(reports.AnyOf(Ref(10), 1));
  EXPECT_FALSE(reports.AnyOf(Ref(10), 0));
  EXPECT_FALSE(reports.AnyOf(Ref(20), 1));
}

std::vector<v1::ShardReport> Shards(int count) {
  std::vector<v1::ShardReport> shards(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) shards[static_cast<size_t>(i)].set_rank(i);
  return shards;
}

TEST(ShardListScheduleTest, TheFirstReportOfAStreamListsTheShards) {
  ShardListSchedule schedule;
  EXPECT_TRUE(schedule.IsDue(1, Shards(2)));
  EXPECT_FALSE(schedule.IsDue(2, Shards(2)));
  EXPECT_TRUE(schedule.IsDue(1, Shards(2)));
}

TEST(ShardListScheduleTest, AnEmptyListIsListedOnce) {
  ShardListSchedule schedule;
  EXPECT_TRUE(schedule.IsDue(1, {}));
  EXPECT_FALSE(schedule.IsDue(2, {}));
}

TEST(ShardListScheduleTest, AChangedListIsListed) {
  ShardListSchedule schedule;
  EXPECT_TRUE(schedule.IsDue(1, Shards(2)));
  EXPECT_TRUE(schedule.IsDue(2, Shards(3)));
  EXPECT_FALSE(schedule.IsDue(3, Shards(3)));
  EXPECT_TRUE(schedule.IsDue(4, Shards(2)));
  EXPECT_TRUE(schedule.IsDue(5, {}));
}

TEST(ShardListScheduleTest, TheListIsDueAfterAReset) {
  ShardListSchedule schedule;
  EXPECT_TRUE(schedule.IsDue(1, Shards(2)));
  schedule.Reset();
  EXPECT_TRUE(schedule.IsDue(2, Shards(2)));
}

TEST(ShardListScheduleTest, TheListIsRepeatedNowAndThen) {
  ShardListSchedule schedule;
  int named = 0;
  for (int64_t number = 1; number <= 10 * ShardListSchedule::kEvery; ++number) {
    named += schedule.IsDue(number, Shards(2));
  }
  EXPECT_EQ(named, 10);
}

}  // namespace
}  // namespace nibble
