// The gangs of a daemon: how they start, run, hang and end, and what is reported of them.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/daemon_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using agent_testing::DaemonTest;
using agent_testing::kPatience;
using agent_testing::kSpec;
using agent_testing::kUntilStopped;
using testing::HasSubstr;
using testing::Not;

TEST_F(DaemonTest, RanksAreBoundToTheCpusOfTheirSlot) {
  const auto allowed = AllowedThreads();
  ASSERT_TRUE(allowed.ok()) << allowed.status();
  pins_ = {{.threads = {allowed->front()}}, {.threads = {allowed->back()}}};
  StartDaemon(Script("grep Cpus_allowed_list /proc/self/status; exit 101"));
  WishGang(1, 2);
  coordinator_.AwaitPhase(v1::RANK_PHASE_STOPPED);
  EXPECT_THAT(LogOf(1, 0), HasSubstr(absl::StrCat("list:\t", allowed->front(), "\n")));
  EXPECT_THAT(LogOf(1, 1), HasSubstr(absl::StrCat("list:\t", allowed->back(), "\n")));
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
  EXPECT_THAT(coordinator_.AwaitPhase(v1::RANK_PHASE_FAILED).detail(), HasSubstr("trainer"));
}

TEST_F(DaemonTest, AFailureNamesNoPathOfTheWorkersOwnDirectories) {
  StartDaemon(Script("echo \"reading $TEST_PATH/jobs/run-1/x and /corpus/y\"; exit 1"));
  spec_ = absl::StrCat(kSpec, "\nenv: {TEST_PATH: ", directory_, "/data}\n");
  WishGang(1, 1);
  const std::string detail = coordinator_.AwaitPhase(v1::RANK_PHASE_FAILED).detail();
  EXPECT_THAT(detail, HasSubstr("reading jobs/run-1/x and /corpus/y"));
  EXPECT_THAT(detail, Not(HasSubstr(directory_)));
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

TEST_F(DaemonTest, WhereRanksAreKeptOnlyTheOneThatCannotGiveUpIsKilledForAHang) {
  hang_ms_ = 2000;
  keep_ranks_ = std::chrono::seconds(60);
  ASSERT_EQ(setenv("NIBBLE_TEST_WAIT_AT", "12", 1), 0);
  StartDaemon(LinkTrainer());
  WishGang(1, 2);
  coordinator_.Await([](const auto& r) {
    return r.gangs_size() == 1 && r.gangs(0).ranks_size() == 2 &&
           r.gangs(0).ranks(0).median_step_ms() > 0 && r.gangs(0).ranks(1).median_step_ms() > 0;
  });
  const int waits = std::stoi(LogOf(1, 0)), hangs = std::stoi(LogOf(1, 1));
  ASSERT_EQ(kill(hangs, SIGSTOP), 0);
  const v1::GangReport gang = coordinator_.AwaitPhase(v1::RANK_PHASE_FAILED);
  ASSERT_EQ(unsetenv("NIBBLE_TEST_WAIT_AT"), 0);
  // Both made none, and were asked.
  EXPECT_THAT(gang.detail(), HasSubstr("rank 1 has made no step for"));
  EXPECT_THAT(gang.detail(), HasSubstr("asked to give up, it does not"));
  EXPECT_EQ(gang.cause(), v1::FAILURE_CAUSE_MACHINE);
  EXPECT_GT(fs::file_size(directory_ + "/data/jobs/run-1/attempt-1/rank-1.stacks"), 0u);
  EXPECT_FALSE(fs::exists(directory_ + "/data/jobs/run-1/attempt-1/rank-0.stacks"));
  coordinator_.Wish([](auto& wish) { wish.clear_gangs(); });
  coordinator_.Await([](const auto& r) { return r.gangs_size() == 0; });
  EXPECT_NE(kill(hangs, 0), 0);
  EXPECT_EQ(kill(waits, 0), 0) << LogOf(1, 0);
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

TEST_F(DaemonTest, ADroppedCheckpointIsReportedInTheTrashAndRestoredByOrder) {
  spec_ += "checkpoints: {every: 4, at_end: true}\n";
  StartDaemon(RealTrainer());
  WishGang(1, 2);
  const v1::ConnectRequest report = coordinator_.Await([](const v1::ConnectRequest& r) {
    return r.gangs_size() == 1 && r.gangs(0).phase() >= v1::RANK_PHASE_STOPPED;
  });
  ASSERT_EQ(report.shards_size(), 4) << report.ShortDebugString();
  const v1::CheckpointRef newest = report.shards(3).ref();
  ASSERT_EQ(newest.step(), 8);
  coordinator_.Wish([&](v1::ConnectResponse& wish) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      v1::DroppedShard& dropped = *wish.add_dropped();
      *dropped.mutable_ref() = newest;
      dropped.set_rank(rank);
      dropped.set_kind(v1::DELETION_KIND_NOT_COMMITTED);
    }
  });
  const v1::ConnectRequest dropped =
      coordinator_.Await([](const auto& r) { return r.shards_size() == 2 && r.trash_size() == 2; });
  EXPECT_EQ(dropped.trash(0).ref().step(), 8);
  EXPECT_TRUE(dropped.trash(0).kept());
  // In the next life, too.
  StopDaemon();
  coordinator_.Wish([&](v1::ConnectResponse& wish) { wish.clear_dropped(); });
  StartDaemon(RealTrainer());
  coordinator_.Await([&](const auto& r) {
    return r.identity().incarnation() > report.identity().incarnation() && r.trash_size() == 2;
  });
  coordinator_.Wish(
      [&](v1::ConnectResponse& wish) { *wish.add_restores()->mutable_ref() = newest; });
  const v1::ConnectRequest restored =
      coordinator_.Await([](const auto& r) { return r.shards_size() == 4 && r.trash_size() == 0; });
  EXPECT_EQ(restored.shards(3).SerializeAsString(), report.shards(3).SerializeAsString());
}

}  // namespace
}  // namespace nibble
