// The daemon and its coordinator: addresses, lives, lost streams, metrics, slow disks.
#include "worker/agent/daemon.h"

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/metrics/exposition_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/daemon_testing.h"
#include "worker/metrics/worker_table.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using agent_testing::DaemonTest;
using agent_testing::kPatience;
using agent_testing::kUntilStopped;
using testing::HasSubstr;

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

TEST_F(DaemonTest, ARemovedJobIsReportedUntilTheCheckpointThatItsRanksLeftIsRemovedToo) {
  const auto set_store = [this](const std::string& id) {
    coordinator_.Wish([&id](v1::ConnectResponse& wish) {
      wish.clear_gangs();
      wish.mutable_store()->set_id(id);
      wish.mutable_store()->set_epoch(1);
    });
  };
  set_store("first");
  spec_ += "checkpoints: {every: 4, at_end: true}\n";
  disk_.Block("shard-");
  StartDaemon(RealTrainer());
  WishGang(1, 1);
  ASSERT_TRUE(disk_.AwaitBlockedWrite());
  set_store("second");
  coordinator_.Await([](const auto& r) { return r.orphans_size() == 1; });
  coordinator_.Wish([](v1::ConnectResponse& wish) {
    v1::OrphanOrder& order = *wish.add_orphans();
    order.set_job("run-1");
    order.mutable_store()->set_id("first");
    order.mutable_store()->set_epoch(1);
  });
  coordinator_.Await([](const auto& r) { return r.gangs_size() == 0; });
  ExpectBeats(20);
  const v1::ConnectRequest ended = coordinator_.Await([](const auto&) { return true; });
  ASSERT_EQ(ended.orphans_size(), 1) << "its checkpoint is still being written";
  EXPECT_TRUE(disk_.IsBlocking());
  disk_.Release();
  coordinator_.Await([](const auto& r) { return r.orphans_size() == 0 && r.shards_size() == 0; });
  ExpectBeats(20);
  const v1::ConnectRequest last = coordinator_.Await([](const auto&) { return true; });
  EXPECT_EQ(last.orphans_size() + last.shards_size(), 0) << last.ShortDebugString();
}

}  // namespace
}  // namespace nibble
