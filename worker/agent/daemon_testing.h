// A whole daemon against a coordinator that sends what the test sets: real processes, real streams,
// real checkpoints.
//
// Ownership: the fixture owns the daemon, the server and their directory. Thread-safety: Coordinator
// from any thread; the fixture from the test's.
#ifndef NIBBLE_WORKER_AGENT_DAEMON_TESTING_H_
#define NIBBLE_WORKER_AGENT_DAEMON_TESTING_H_

#include <grpcpp/grpcpp.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/worker_link.grpc.pb.h"
#include "worker/agent/daemon.h"
#include "worker/agent/slot_plan.h"
#include "worker/agent/stuck_disk_testing.h"

namespace nibble::agent_testing {

inline constexpr char kSpec[] = R"(
name: run
model: tiny-hybrid
recipe: nvfp4
data: {train: [/usr/share/common-licenses/GPL-3], sequence: 32,
       validation: [{name: mpl, path: /usr/share/common-licenses/MPL-2.0}]}
training: {steps: 8, batch: 4}
optimizer: {lr: 0.002, warmup_steps: 2, decay_fraction: 0.3333}
resources: {threads: 1}
)";

// Answers every report with the same desired state, under a new number.
class Coordinator final : public v1::WorkerLink::Service {
 public:
  grpc::Status Connect(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ConnectResponse, v1::ConnectRequest>* stream) override {
    v1::ConnectRequest request;
    int64_t number = 0;
    while (stream->Read(&request)) {
      v1::ConnectResponse response;
      {
        const MutexLock lock(&mutex_);
        EXPECT_TRUE(request.all_shards() || request.number() > 1) << "a stream begins with all";
        // A report without shards leaves the lists unchanged.
        if (!request.all_shards()) {
          *request.mutable_shards() = last_.shards();
          *request.mutable_orphans() = last_.orphans();
          *request.mutable_trash() = last_.trash();
        }
        last_ = request;
        if (!refusal_.ok()) return refusal_;
        response = wish_;
      }
      changed_.SignalAll();
      response.set_number(++number);
      response.set_answered(request.number());
      response.set_cluster("test");
      if (!stream->Write(response)) break;
    }
    return grpc::Status::OK;
  }
  void Wish(const std::function<void(v1::ConnectResponse&)>& change) {
    const MutexLock lock(&mutex_);
    change(wish_);
  }
  void Refuse(const grpc::Status& status) {
    const MutexLock lock(&mutex_);
    refusal_ = status;
  }
  // The first report that `done` accepts; with the shards and orphans that were listed last.
  v1::ConnectRequest Await(const std::function<bool(const v1::ConnectRequest&)>& done) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    const MutexLock lock(&mutex_);
    while (!done(last_) && !changed_.WaitUntil(&mutex_, until)) {
    }
    EXPECT_TRUE(done(last_)) << last_.ShortDebugString();
    return last_;
  }
  v1::GangReport AwaitPhase(v1::RankPhase phase) {
    // A failure is final, so do not wait further.
    const v1::ConnectRequest report = Await([phase](const v1::ConnectRequest& request) {
      return request.gangs_size() == 1 && (request.gangs(0).phase() == phase ||
                                           request.gangs(0).phase() == v1::RANK_PHASE_FAILED);
    });
    EXPECT_EQ(report.gangs(0).phase(), phase) << report.gangs(0).detail();
    return report.gangs_size() == 1 ? report.gangs(0) : v1::GangReport();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  v1::ConnectResponse wish_ ABSL_GUARDED_BY(mutex_);
  v1::ConnectRequest last_ ABSL_GUARDED_BY(mutex_);
  grpc::Status refusal_ ABSL_GUARDED_BY(mutex_);
};

class DaemonTest : public testing::Test {
 protected:
  DaemonTest() {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    StartServer();
  }
  ~DaemonTest() override {
    disk_.Release();
    StopDaemon();
    server_->Shutdown(std::chrono::system_clock::now());
    std::filesystem::remove_all(directory_);
  }
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
  // A program in place of the trainer.
  std::string Script(const std::string& text) {
    const std::string path = directory_ + "/trainer.sh";
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  // The path of a program that the test depends on; the variable overrides it for builds by hand.
  static std::string ProgramAt(const char* variable, const char* path) {
    const char* const given = getenv(variable);
    if (given != nullptr) return given;
    return absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"), "/", path);
  }
  static std::string RealTrainer() {
    return ProgramAt("NIBBLE_TRAINER", "worker/trainer/loop/nibble-trainer");
  }
  static std::string LinkTrainer() {
    return ProgramAt("NIBBLE_LINK_TRAINER", "worker/agent/link_trainer");
  }
  void StartDaemon(const std::string& trainer) {
    Daemon::Options options;
    options.identity.set_name("w1");
    options.identity.set_address("127.0.0.1:0");
    options.identity.set_slots(2);
    options.http.listen = "127.0.0.1:0";
    options.coordinator = absl::StrCat("127.0.0.1:", port_);
    options.data_directory = directory_ + "/data";
    options.trainer = trainer;
    options.beat = beat_;
    options.watchdog = {.median_steps = 20, .least_ms = hang_ms_};
    options.backoff = {.first = std::chrono::milliseconds(10),
                       .most = std::chrono::milliseconds(50)};
    options.faults = &disk_;
    options.pins = pins_;
    options.keep_ranks = keep_ranks_;
    auto daemon = Daemon::Start(std::move(options));
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    stop_ = false;
    runner_ = std::thread([this] { ended_with_ = daemon_->Run(stop_); });
  }
  void StopDaemon() {
    stop_ = true;
    if (runner_.joinable()) runner_.join();
    daemon_.reset();
  }
  void WishGang(int64_t attempt, int32_t ranks, const v1::CheckpointRef* resume = nullptr,
                const std::string& job = "run-1") {
    coordinator_.Wish([&](v1::ConnectResponse& wish) {
      if (job == "run-1") wish.clear_gangs();
      v1::DesiredGang& gang = *wish.add_gangs();
      gang.set_job(job);
      gang.set_attempt(attempt);
      gang.set_world(ranks);
      for (int32_t slot = 0; slot < ranks; ++slot)
        gang.add_slots(10 * (wish.gangs_size() - 1) + slot);
      gang.set_spec_yaml(spec_);
      gang.set_command(v1::GANG_COMMAND_RUN);
      if (resume != nullptr) *gang.mutable_resume() = *resume;
    });
  }
  // Waits for `count` further reports and an answer to one of them: the lease is renewed.
  void ExpectBeats(int count) {
    const int64_t before = coordinator_.Await([](const auto&) { return true; }).number();
    coordinator_.Await(
        [&](const auto& r) { return r.number() > before + count && r.desired_number() > before; });
  }
  std::string LogOf(int64_t attempt, int32_t rank) {
    std::ifstream file(
        absl::StrCat(directory_, "/data/jobs/run-1/attempt-", attempt, "/rank-", rank, ".log"));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::string directory_ = "/tmp/nibble-daemon-XXXXXX";  // the path of a socket is short
  std::string spec_ = kSpec;
  std::chrono::milliseconds beat_{20};
  int64_t hang_ms_ = 120'000;
  std::vector<SlotPin> pins_;
  std::chrono::seconds keep_ranks_{0};
  int port_ = 0;
  StuckDisk disk_;
  Coordinator coordinator_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Daemon> daemon_;
  std::atomic<bool> stop_ = false;
  std::thread runner_;
  absl::Status ended_with_;
};

// A script in place of the trainer.
inline constexpr char kUntilStopped[] = "trap 'exit 101' TERM; echo up $*; while :; do sleep 0.01; done";

}  // namespace nibble::agent_testing

#endif  // NIBBLE_WORKER_AGENT_DAEMON_TESTING_H_
