// A whole daemon against a coordinator that sends what the test sets: real processes, real streams,
// real checkpoints.
#include "worker/agent/daemon.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/files.h"
#include "common/metrics/exposition_testing.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/worker_link.grpc.pb.h"
#include "worker/metrics/worker_table.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr std::chrono::seconds kPatience(120);

constexpr char kSpec[] = R"(
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
        const std::lock_guard<std::mutex> lock(mutex_);
        EXPECT_TRUE(request.all_shards() || request.number() > 1) << "a stream begins with all";
        // A report without shards leaves the list unchanged.
        if (!request.all_shards()) *request.mutable_shards() = last_.shards();
        last_ = request;
        if (!refusal_.ok()) return refusal_;
        response = wish_;
      }
      changed_.notify_all();
      response.set_number(++number);
      response.set_answered(request.number());
      response.set_cluster("test");
      if (!stream->Write(response)) break;
    }
    return grpc::Status::OK;
  }
  void Wish(const std::function<void(v1::ConnectResponse&)>& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    change(wish_);
  }
  void Refuse(const grpc::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    refusal_ = status;
  }
  // The first report that `done` accepts; with the shards that were listed last.
  v1::ConnectRequest Await(const std::function<bool(const v1::ConnectRequest&)>& done) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return done(last_); }))
        << last_.ShortDebugString();
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
  std::mutex mutex_;
  std::condition_variable changed_;
  v1::ConnectResponse wish_;
  v1::ConnectRequest last_;
  grpc::Status refusal_;
};

// A disk whose writes to some paths wait until it is released, as one that takes long per fsync.
class StuckDisk : public DiskFaults {
 public:
  int BeforeWrite(const std::string& path, int64_t) override {
    const MutexLock lock(&mutex_);
    if (part_.empty() || path.find(part_) == std::string::npos) return 0;
    ++waiting_;
    changed_.SignalAll();
    while (!part_.empty()) changed_.Wait(&mutex_);
    --waiting_;
    return 0;
  }
  void AfterSync(const std::string&) override {}

  // From now on, writes to files that have `part` in their path wait.
  void Block(const std::string& part) {
    const MutexLock lock(&mutex_);
    part_ = part;
  }
  void Release() {
    const MutexLock lock(&mutex_);
    part_.clear();
    changed_.SignalAll();
  }
  bool AwaitBlockedWrite() {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    const MutexLock lock(&mutex_);
    while (waiting_ == 0 && !changed_.WaitUntil(&mutex_, until)) {
    }
    return waiting_ > 0;
  }
  // Whether a write waits now.
  bool IsBlocking() {
    const MutexLock lock(&mutex_);
    return waiting_ > 0;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::string part_ ABSL_GUARDED_BY(mutex_);  // empty: nothing waits
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
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
    fs::remove_all(directory_);
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
    fs::permissions(path, fs::perms::owner_all);
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
  int port_ = 0;
  StuckDisk disk_;
  Coordinator coordinator_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Daemon> daemon_;
  std::atomic<bool> stop_ = false;
  std::thread runner_;
  absl::Status ended_with_;
};

constexpr char kUntilStopped[] = "trap 'exit 101' TERM; echo up $*; while :; do sleep 0.01; done";

TEST_F(DaemonTest, OffLoopbackItStartsOnlyWithInsecure) {
  Daemon::Options options;
  options.coordinator = absl::StrCat("127.0.0.1:", port_);
  options.data_directory = directory_ + "/data";
  const auto refused = [&options](const std::string& address, bool insecure) {
    options.identity.set_address(address);
    options.insecure = insecure;
    return Daemon::Start(options).status();
  };
  for (const char* const address : {"192.0.2.1:0", "node7:7000", "0.0.0.0:0", "[2001:db8::1]:0"}) {
    const absl::Status status = refused(address, false);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--insecure"));
  }
  // Nothing was touched: another daemon may own the directory.
  EXPECT_FALSE(fs::exists(options.data_directory));
  EXPECT_TRUE(absl::IsInvalidArgument(refused("0.0.0.0:0", true)));
  EXPECT_TRUE(absl::IsInvalidArgument(refused("7000", true)));
  // Allowed, but not an address of this machine.
  EXPECT_TRUE(absl::IsUnavailable(refused("192.0.2.1:0", true)));
}

TEST_F(DaemonTest, TheFirstReportNamesTheWorkerAndIsEmpty) {
  StartDaemon(Script("exit 0"));
  const auto report = coordinator_.Await([](const auto& r) { return r.cluster() == "test"; });
  EXPECT_EQ(report.identity().name(), "w1");
  EXPECT_EQ(report.identity().incarnation(), daemon_->incarnation());
  EXPECT_EQ(report.shards_size(), 0);
  EXPECT_EQ(report.gangs_size(), 0);
}

TEST_F(DaemonTest, AGangRunsStopsOnOrderAndIsClosed) {
  StartDaemon(Script(kUntilStopped));
  WishGang(1, 2);
  coordinator_.AwaitPhase(v1::RANK_PHASE_RUNNING);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while ((LogOf(1, 0).empty() || LogOf(1, 1).empty()) && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  EXPECT_THAT(LogOf(1, 1), HasSubstr("--rank 1 --world 2"));
  coordinator_.Wish([](auto& wish) { wish.mutable_gangs(0)->set_command(v1::GANG_COMMAND_STOP); });
  coordinator_.AwaitPhase(v1::RANK_PHASE_STOPPED);
  coordinator_.Wish([](auto& wish) { wish.clear_gangs(); });
  coordinator_.Await([](const auto& r) { return r.gangs_size() == 0; });
}

TEST_F(DaemonTest, AWallClockAheadOfTheCoordinatorsDoesNotTurnAStopIntoAKill) {
  StartDaemon(Script(kUntilStopped));
  WishGang(1, 1);
  coordinator_.AwaitPhase(v1::RANK_PHASE_RUNNING);
  coordinator_.Wish([](auto& wish) {
    wish.mutable_gangs(0)->set_command(v1::GANG_COMMAND_STOP);
    wish.mutable_gangs(0)->set_stop_by_unix_ms(1);  // long over by the clock of this machine
    wish.mutable_gangs(0)->set_stop_within_ms(3'600'000);
  });
  coordinator_.AwaitPhase(v1::RANK_PHASE_STOPPED);
}

TEST_F(DaemonTest, AGangThatDoesNotStopWithinItsTimeIsKilledHoweverOftenTheOrderComes) {
  StartDaemon(Script("trap '' TERM; while :; do sleep 0.01; done"));
  WishGang(1, 1);
  coordinator_.AwaitPhase(v1::RANK_PHASE_RUNNING);
  for (const int64_t within_ms : {200, 3'600'000}) {
    coordinator_.Wish([within_ms](auto& wish) {
      wish.mutable_gangs(0)->set_command(v1::GANG_COMMAND_STOP);
      wish.mutable_gangs(0)->set_stop_within_ms(within_ms);
    });
    const int64_t before = coordinator_.Await([](const auto&) { return true; }).number();
    coordinator_.Await([before](const auto& r) { return r.desired_number() > before; });
  }
  coordinator_.AwaitPhase(v1::RANK_PHASE_FAILED);
}

TEST_F(DaemonTest, AFailureIsReportedWithTheRanksOutputAndEndsTheGang) {
  StartDaemon(Script("case \"$*\" in *'--rank 1'*) echo no such corpus; exit 1;; esac\n" +
                     std::string(kUntilStopped)));
  WishGang(1, 2);
  const v1::GangReport gang = coordinator_.AwaitPhase(v1::RANK_PHASE_FAILED);
  EXPECT_THAT(gang.detail(), HasSubstr("rank 1 ended with exit code 1"));
  EXPECT_THAT(gang.detail(), HasSubstr("no such corpus"));
}

TEST_F(DaemonTest, AFailureOfTheSpecIsReportedInTheTrainersWords) {
  StartDaemon(Script("echo 'nibble-trainer: data.train: /x: no such file'; exit 3\n"));
  WishGang(1, 1);
  const v1::GangReport gang = coordinator_.AwaitPhase(v1::RANK_PHASE_FAILED);
  EXPECT_EQ(gang.cause(), v1::FAILURE_CAUSE_SPEC);
  EXPECT_EQ(gang.detail(), "data.train: /x: no such file");
}

TEST_F(DaemonTest, ARankThatLostAnotherIsNotTheCauseOfTheGangsEnd) {
  // Rank 0 ends first, for lack of rank 1, which a signal ends.
  StartDaemon(Script(
      "mark=" + testing::TempDir() +
      "/lost\n"
      "case \"$*\" in *'--rank 0'*) touch $mark; echo nibble-trainer: lost rank 1; exit 6;;\n"
      "esac\n"
      "until [ -e $mark ]; do :; done; rm $mark; kill -9 $$\n"));
  WishGang(1, 2);
  const v1::GangReport gang = coordinator_.AwaitPhase(v1::RANK_PHASE_FAILED);
  EXPECT_EQ(gang.cause(), v1::FAILURE_CAUSE_MACHINE);
  EXPECT_THAT(gang.detail(), HasSubstr("rank 1 was killed by signal 9"));
}

TEST_F(DaemonTest, RanksHaveTheEnvironmentOfTheirSpec) {
  spec_ = absl::StrCat(kSpec, "\nenv: {SPOKEN_WORD: 7 and more}\n");
  StartDaemon(Script("echo the word is $SPOKEN_WORD; exit 1"));
  WishGang(1, 1);
  EXPECT_THAT(coordinator_.AwaitPhase(v1::RANK_PHASE_FAILED).detail(),
              HasSubstr("the word is 7 and more"));
}

TEST_F(DaemonTest, AGangThatCannotStartHasFailedWithTheReason) {
  StartDaemon("/no/such/trainer");
  WishGang(1, 1);
  EXPECT_THAT(coordinator_.AwaitPhase(v1::RANK_PHASE_FAILED).detail(),
              HasSubstr("/no/such/trainer"));
}

TEST_F(DaemonTest, RanksContinueWhileTheCoordinatorIsAway) {
  StartDaemon(Script(kUntilStopped));
  WishGang(1, 1);
  coordinator_.AwaitPhase(v1::RANK_PHASE_RUNNING);
  StopServer();
  coordinator_.Wish([](auto& wish) { wish.mutable_gangs(0)->set_checkpoint_request(1); });
  StartServer();
  // A rank started a second time would have failed: an attempt starts once.
  coordinator_.Await([](const auto& r) { return r.desired_number() > 3; });
  coordinator_.AwaitPhase(v1::RANK_PHASE_RUNNING);
}

TEST_F(DaemonTest, AnAttemptThatIsNoLongerWantedIsKilledBeforeTheNextStarts) {
  StartDaemon(Script("trap '' TERM; echo up; while :; do sleep 0.01; done"));
  WishGang(1, 2);
  coordinator_.AwaitPhase(v1::RANK_PHASE_RUNNING);
  WishGang(2, 2);
  coordinator_.Await([](const auto& r) {
    return r.gangs_size() == 1 && r.gangs(0).attempt() == 2 &&
           r.gangs(0).phase() == v1::RANK_PHASE_RUNNING;
  });
}

TEST_F(DaemonTest, ANewLifeHasAGreaterIncarnationAndNoRanks) {
  StartDaemon(Script(kUntilStopped));
  const int64_t first = daemon_->incarnation();
  WishGang(1, 1);
  coordinator_.AwaitPhase(v1::RANK_PHASE_RUNNING);
  StopDaemon();
  coordinator_.Wish([](auto& wish) { wish.clear_gangs(); });
  StartDaemon(Script(kUntilStopped));
  EXPECT_GT(daemon_->incarnation(), first);
  coordinator_.Await([&](const auto& r) {
    return r.identity().incarnation() == daemon_->incarnation() && r.gangs_size() == 0;
  });
}

TEST_F(DaemonTest, TwoDaemonsDoNotShareADirectory) {
  StartDaemon(Script(kUntilStopped));
  Daemon::Options options;
  options.identity.set_address("127.0.0.1:0");
  options.http.listen = "127.0.0.1:0";
  options.data_directory = directory_ + "/data";
  EXPECT_EQ(Daemon::Start(std::move(options)).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(DaemonTest, ADaemonEndsWhenANewerOneHasItsName) {
  coordinator_.Refuse({grpc::StatusCode::ABORTED, "incarnation 9 of w1 is known"});
  StartDaemon(Script(kUntilStopped));
  runner_.join();
  EXPECT_EQ(ended_with_.code(), absl::StatusCode::kAborted);
}

TEST_F(DaemonTest, ALinkedGangIsPausedResumedAndStoppedAtItsStepBoundary) {
  StartDaemon(LinkTrainer());
  WishGang(1, 1);
  const auto running = coordinator_.Await([](const auto& r) {
    return r.gangs_size() == 1 && r.gangs(0).next_step() > 3 && r.gangs(0).samples_size() > 0;
  });
  EXPECT_EQ(running.gangs(0).revisions_size(), 1);
  coordinator_.Wish([](auto& wish) {
    wish.mutable_gangs(0)->set_command(v1::GANG_COMMAND_PAUSE);
    wish.mutable_gangs(0)->set_checkpoint_request(7);
  });
  const int64_t stands = coordinator_.AwaitPhase(v1::RANK_PHASE_PAUSED).next_step();
  coordinator_.Wish([](auto& wish) { wish.mutable_gangs(0)->set_command(v1::GANG_COMMAND_RUN); });
  coordinator_.Await([stands](const auto& r) {
    return r.gangs(0).phase() == v1::RANK_PHASE_RUNNING && r.gangs(0).next_step() > stands &&
           r.gangs(0).checkpoint_request() == 7;
  });
  coordinator_.Wish([](auto& wish) { wish.mutable_gangs(0)->set_command(v1::GANG_COMMAND_STOP); });
  coordinator_.AwaitPhase(v1::RANK_PHASE_STOPPED);
}

TEST_F(DaemonTest, ANewRevisionIsReportedWithoutWaitingForTheBeat) {
  beat_ = std::chrono::hours(1);
  StartDaemon(LinkTrainer());
  WishGang(1, 1);
  const auto report = coordinator_.Await(
      [](const auto& r) { return r.gangs_size() == 1 && r.gangs(0).revisions_size() == 1; });
  EXPECT_EQ(report.gangs(0).revisions(0).revision(), 1);
  EXPECT_EQ(report.gangs(0).revisions(0).first_step(), 0);
}

TEST_F(DaemonTest, ARankThatHangsIsNamedItsStacksWrittenAndItsGangFails) {
  hang_ms_ = 300;
  ASSERT_EQ(setenv("NIBBLE_TEST_HANG_AT", "12", 1), 0);
  StartDaemon(LinkTrainer());
  WishGang(1, 1);
  const v1::GangReport gang = coordinator_.AwaitPhase(v1::RANK_PHASE_FAILED);
  ASSERT_EQ(unsetenv("NIBBLE_TEST_HANG_AT"), 0);
  EXPECT_THAT(gang.detail(), HasSubstr("rank 0 has made no step for"));
  EXPECT_THAT(gang.detail(), HasSubstr("before step 12"));
  EXPECT_GT(fs::file_size(directory_ + "/data/jobs/run-1/attempt-1/rank-0.stacks"), 0u);
}

TEST_F(DaemonTest, ARankStoppedByASignalIsFoundDumpedAndKilled) {
  hang_ms_ = 300;
  StartDaemon(LinkTrainer());
  WishGang(1, 2);
  coordinator_.Await([](const auto& r) {
    return r.gangs_size() == 1 && r.gangs(0).ranks_size() == 2 &&
           r.gangs(0).ranks(0).median_step_ms() > 0 && r.gangs(0).ranks(1).median_step_ms() > 0;
  });
  const int pid = std::stoi(LogOf(1, 1));
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  const v1::GangReport gang = coordinator_.AwaitPhase(v1::RANK_PHASE_FAILED);
  EXPECT_THAT(gang.detail(), HasSubstr("rank 1 has made no step for"));
  const std::string stacks = directory_ + "/data/jobs/run-1/attempt-1/rank-1.stacks";
  EXPECT_GT(fs::file_size(stacks), 0u);
  std::ifstream file(stacks);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_THAT(text, HasSubstr(absl::StrCat(pid)));
  coordinator_.Wish([](auto& wish) { wish.clear_gangs(); });
  coordinator_.Await([](const auto& r) { return r.gangs_size() == 0; });
  EXPECT_NE(kill(pid, 0), 0);
}

TEST_F(DaemonTest, AGangWhoseCheckpointIsNowhereReportsItsSourcesAndStopsUnstarted) {
  StartDaemon(Script(kUntilStopped));
  v1::CheckpointRef resume;
  resume.set_job("run-1");
  resume.set_step(4);
  resume.set_attempt(1);
  WishGang(2, 1, &resume);
  coordinator_.Wish([&](auto& wish) {
    v1::DesiredReplica& shard = *wish.mutable_gangs(0)->add_resume_shards();
    *shard.mutable_ref() = resume;
    shard.set_manifest_crc32c(7);
    shard.add_sources("127.0.0.1:1");
  });
  coordinator_.Await([](const auto& r) {
    return r.gangs_size() == 1 && r.gangs(0).phase() == v1::RANK_PHASE_ASSIGNED &&
           r.gangs(0).detail().find("127.0.0.1:1") != std::string::npos;
  });
  coordinator_.Wish([](auto& wish) { wish.mutable_gangs(0)->set_command(v1::GANG_COMMAND_STOP); });
  coordinator_.AwaitPhase(v1::RANK_PHASE_STOPPED);
  EXPECT_EQ(LogOf(2, 0), "");
}

TEST_F(DaemonTest, AScrapeShowsAGangUntilItIsClosed) {
  StartDaemon(LinkTrainer());
  const auto scrape = [this] {
    const std::string address = daemon_->http_address();
    const auto text = HttpGet(std::stoi(address.substr(address.rfind(':') + 1)), "/metrics");
    EXPECT_TRUE(text.ok()) << text.status();
    auto exposed = Exposition::Parse(text.ok() ? *text : "");
    EXPECT_TRUE(exposed.ok()) << exposed.status();
    return exposed.ok() ? *std::move(exposed) : Exposition();
  };
  const auto await = [&](const std::function<bool(const Exposition&)>& so) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    Exposition exposed = scrape();
    while (!so(exposed) && std::chrono::steady_clock::now() < deadline) exposed = scrape();
    EXPECT_TRUE(so(exposed));
    return exposed;
  };
  const auto first = coordinator_.Await([](const auto& r) { return r.cluster() == "test"; });
  EXPECT_EQ(first.identity().http_address(), daemon_->http_address());
  WishGang(1, 2);
  const Exposition trains = await([](const Exposition& exposed) {
    return exposed.Value("nibble_job_next_step{job=\"run-1\"}") > 3 &&
           exposed.SeriesOf("nibble_rank_memory_bytes") == 2;
  });
  EXPECT_THAT(trains.MissingOf(WorkerRows()), testing::IsEmpty());
  EXPECT_GT(trains.Value("nibble_job_loss{job=\"run-1\"}"), 0);
  EXPECT_EQ(trains.Value("nibble_job_ranks{job=\"run-1\",phase=\"running\"}"), 2);
  EXPECT_EQ(trains.Value("nibble_job_planned_steps{job=\"run-1\"}"), 8);
  EXPECT_GT(trains.Value("nibble_rank_log_bytes_total{job=\"run-1\",rank=\"0\"}"), 0);
  EXPECT_EQ(trains.Value("nibble_worker_slots_used"), 2);
  EXPECT_EQ(trains.Value("nibble_coordinator_connected"), 1);
  coordinator_.Wish([](auto& wish) { wish.clear_gangs(); });
  await([](const Exposition& exposed) {
    return exposed.SeriesOf("nibble_job_attempt") == 0 &&
           exposed.SeriesOf("nibble_rank_memory_bytes") == 0;
  });
}

TEST_F(DaemonTest, HeartbeatsDoNotWaitForTheDiskThatALaunchWaitsFor) {
  StartDaemon(Script(kUntilStopped));
  WishGang(1, 1);
  coordinator_.AwaitPhase(v1::RANK_PHASE_RUNNING);
  // Each file of a launch in turn: the order's record, the spec, the store's record.
  int64_t attempt = 0;
  for (const char* const file : {"/order", "/spec.yaml", "/checkpoints"}) {
    SCOPED_TRACE(file);
    const std::string job = absl::StrCat("run-2", ++attempt);
    disk_.Block(file);
    WishGang(1, 1, nullptr, job);
    ASSERT_TRUE(disk_.AwaitBlockedWrite());
    ExpectBeats(20);
    const auto report = coordinator_.Await([](const auto&) { return true; });
    ASSERT_EQ(report.gangs_size(), 1 + attempt);
    EXPECT_EQ(report.gangs(0).phase(), v1::RANK_PHASE_RUNNING);
    EXPECT_EQ(report.gangs(static_cast<int>(attempt)).phase(), v1::RANK_PHASE_ASSIGNED);
    EXPECT_TRUE(disk_.IsBlocking());
    disk_.Release();
    coordinator_.Await([&](const auto& r) {
      return r.gangs_size() == 1 + attempt &&
             r.gangs(static_cast<int>(attempt)).phase() == v1::RANK_PHASE_RUNNING;
    });
  }
}

TEST_F(DaemonTest, AGangStopsWhileAnotherWaitsForTheDisk) {
  StartDaemon(Script(kUntilStopped));
  WishGang(1, 1);
  coordinator_.AwaitPhase(v1::RANK_PHASE_RUNNING);
  disk_.Block("run-2");
  WishGang(1, 1, nullptr, "run-2");
  ASSERT_TRUE(disk_.AwaitBlockedWrite());
  coordinator_.Wish([](auto& wish) { wish.mutable_gangs(0)->set_command(v1::GANG_COMMAND_STOP); });
  coordinator_.Await([](const auto& r) {
    return r.gangs_size() == 2 && r.gangs(0).phase() == v1::RANK_PHASE_STOPPED &&
           r.gangs(1).phase() == v1::RANK_PHASE_ASSIGNED;
  });
  EXPECT_TRUE(disk_.IsBlocking());
}

TEST_F(DaemonTest, HeartbeatsDoNotWaitForTheSnapshotOfARankThatDied) {
  spec_ += "checkpoints: {every: 4, at_end: true}\n";
  disk_.Block("shard-");
  StartDaemon(Script(absl::StrCat("echo $$; exec ", RealTrainer(), " \"$@\"")));
  WishGang(1, 1);
  ASSERT_TRUE(disk_.AwaitBlockedWrite());
  ASSERT_EQ(kill(std::stoi(LogOf(1, 0)), SIGKILL), 0);
  const v1::ConnectRequest failed = coordinator_.Await([](const auto& r) {
    return r.gangs_size() == 1 && r.gangs(0).phase() == v1::RANK_PHASE_FAILED;
  });
  EXPECT_THAT(failed.gangs(0).detail(), HasSubstr("signal 9"));
  ExpectBeats(20);
  // The end of the gang waits for the snapshot; the daemon and its lease do not.
  coordinator_.Wish([](auto& wish) { wish.clear_gangs(); });
  coordinator_.Await([](const auto& r) { return r.gangs_size() == 0; });
  ExpectBeats(20);
  EXPECT_TRUE(disk_.IsBlocking());
  // The job's next attempt starts once the snapshot is stored or dropped.
  WishGang(2, 1);
  ExpectBeats(20);
  EXPECT_EQ(coordinator_.Await([](const auto&) { return true; }).gangs_size(), 0);
  EXPECT_TRUE(disk_.IsBlocking());
  disk_.Release();
  coordinator_.AwaitPhase(v1::RANK_PHASE_RUNNING);
}

TEST_F(DaemonTest, TheRealTrainerRunsStoresAndResumes) {
  spec_ += "checkpoints: {every: 4, at_end: true}\n";
  StartDaemon(RealTrainer());
  WishGang(1, 2);
  const v1::ConnectRequest report = coordinator_.Await([](const v1::ConnectRequest& r) {
    return r.gangs_size() == 1 && r.gangs(0).phase() >= v1::RANK_PHASE_STOPPED;
  });
  ASSERT_EQ(report.gangs(0).phase(), v1::RANK_PHASE_SUCCEEDED) << report.gangs(0).detail();
  // Two ranks, the checkpoints of steps 4 and 8.
  ASSERT_EQ(report.shards_size(), 4) << report.ShortDebugString();
  const v1::CheckpointRef resume = report.shards(0).ref();
  EXPECT_EQ(resume.step(), 4);
  WishGang(2, 2, &resume);
  const v1::ConnectRequest resumed = coordinator_.Await([](const v1::ConnectRequest& r) {
    return r.gangs_size() == 1 && r.gangs(0).attempt() == 2 &&
           r.gangs(0).phase() >= v1::RANK_PHASE_STOPPED;
  });
  EXPECT_EQ(resumed.gangs(0).phase(), v1::RANK_PHASE_SUCCEEDED) << resumed.gangs(0).detail();
}

}  // namespace
}  // namespace nibble
