// What becomes of jobs whose ranks or checkpoints are lost: ranks that the restored store did not
// order, and jobs that nothing lets run again.
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/controller.h"
#include "server/controller/testing.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A job of four ranks on w1 and w2, and a store that is restored with each restart.
class StrayRanksTest : public testing::Test {
 protected:
  StrayRanksTest() {
    w1_.Obey();
    w2_.Obey();
    job_ = coordinator_.Submit(4);
    coordinator_.Tick();
    w1_.Obey(1);
    w2_.Obey(1);
    coordinator_.Restart();
    w1_.Reconnect();
    w2_.Reconnect();
  }
  // The ranks of an attempt run on after the restore.
  void ReportStray(TestWorker& worker, int64_t attempt) {
    worker.report.set_all_shards(true);
    worker.report.clear_orphans();
    worker.report.mutable_gangs(0)->set_attempt(attempt);
    v1::Orphan& orphan = *worker.report.add_orphans();
    orphan.set_job(job_);
    orphan.set_attempt(attempt);
    orphan.set_running(true);
    orphan.mutable_store()->set_id(kStore);
    orphan.mutable_store()->set_epoch(1);
    ASSERT_EQ(worker.Report(), absl::OkStatus());
  }
  // Milliseconds that ranks of the attempt may take to stop; 0: they are not asked to.
  static int64_t StopsWithin(const TestWorker& worker, int64_t attempt) {
    for (const v1::DesiredGang& gang : worker.desired.gangs()) {
      if (gang.attempt() == attempt && gang.command() == v1::GANG_COMMAND_STOP) {
        return gang.stop_within_ms();
      }
    }
    return 0;
  }
  void PassLease(TestWorker& reports) {
    for (int i = 0; i < 3; ++i) {
      coordinator_.clock.Advance(6'000);
      ASSERT_EQ(reports.Report(), absl::OkStatus());
      coordinator_.Tick();
    }
    ASSERT_EQ(reports.Report(), absl::OkStatus());
  }

  static constexpr char kStore[] = "27c4934527c5ca44567c36dd41a7ec8e";
  TestCoordinator coordinator_{{.fresh_id = [] { return std::string(kStore); }, .restored = true}};
  TestWorker w1_{coordinator_, "w1", 2};
  TestWorker w2_{coordinator_, "w2", 2};
  std::string job_;
};

TEST_F(StrayRanksTest, RanksOfAnAttemptThatTheStoreHasEndedAreEndedAtOnce) {
  ReportStray(w1_, 1);
  EXPECT_EQ(StopsWithin(w1_, 1), 0);  // the store knows the attempt, and it lives
  PassLease(w1_);                     // w2 is lost, and the attempt with it
  EXPECT_EQ(coordinator_.Job(job_).recent_attempts(0).outcome(), v1::ATTEMPT_OUTCOME_LOST);
  EXPECT_EQ(StopsWithin(w1_, 1), 1);
  // The job runs again as soon as they have ended.
  w1_.report.clear_orphans();
  w1_.report.clear_gangs();
  TestWorker w3(coordinator_, "w3", 2);
  w3.Obey();
  ASSERT_EQ(w1_.Report(), absl::OkStatus());
  coordinator_.clock.Advance(60'000);
  ASSERT_EQ(w1_.Report(), absl::OkStatus());
  ASSERT_EQ(w3.Report(), absl::OkStatus());
  coordinator_.Tick();
  EXPECT_EQ(coordinator_.Job(job_).attempt().number(), 2);
}

TEST_F(StrayRanksTest, RanksOfAnAdoptedAttemptMayCommitUnlessOthersOfTheirGangAreGone) {
  ReportStray(w1_, 2);  // launched after the backup
  EXPECT_EQ(coordinator_.Job(job_).attempts(), 2);
  // Until every worker had a lease's time to report, its other ranks may be on one of them.
  EXPECT_EQ(StopsWithin(w1_, 2), kDefaultGraceMs);
  PassLease(w1_);
  EXPECT_EQ(StopsWithin(w1_, 2), 1);
}

TEST_F(StrayRanksTest, RanksOfAWholeAdoptedAttemptMayTakeTheirCheckpoint) {
  ReportStray(w1_, 2);
  ReportStray(w2_, 2);
  for (int i = 0; i < 4; ++i) {
    coordinator_.clock.Advance(6'000);
    ASSERT_EQ(w1_.Report(), absl::OkStatus());
    ASSERT_EQ(w2_.Report(), absl::OkStatus());
    coordinator_.Tick();
  }
  EXPECT_EQ(StopsWithin(w1_, 2), kDefaultGraceMs);
  EXPECT_EQ(StopsWithin(w2_, 2), kDefaultGraceMs);
}

TEST(UnresumableTest, AJobOfWhichNoCheckpointIsLeftFailsAfterABoundAndItsWaitsEnd) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 1);
  const std::string job = worker.RunJob(1, 1);
  worker.Store(10);
  worker.Store(20);
  absl::Status end = absl::UnknownError("waits");
  v1::WaitJobRequest wait;
  wait.set_job(job);
  EXPECT_GT(coordinator.controller().watches().Wait(
                wait, [&end](const absl::Status& status) { end = status; }),
            0);
  // Its worker comes back with an empty disk.
  worker.report.mutable_identity()->set_incarnation(2);
  worker.report.clear_gangs();
  worker.report.clear_shards();
  worker.report.set_all_shards(true);
  worker.Reconnect();
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(coordinator.Job(job).state_reason(), HasSubstr("every checkpoint of it is damaged"));
  for (int64_t waited = 0; waited < kUnresumableMs; waited += 5'000) {
    EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RECOVERING) << waited;
    coordinator.clock.Advance(5'000);
    ASSERT_EQ(worker.Report(), absl::OkStatus());
    coordinator.Tick();
  }
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(
      coordinator.Job(job).state_reason(),
      AllOf(HasSubstr(absl::StrCat("the checkpoint of ", job,
                                   " at step 20 (attempt 1): the shard of rank 0 is lost: w1, its "
                                   "only holder, no longer stores it")),
            HasSubstr(absl::StrCat("the checkpoint of ", job, " at step 10 (attempt 1): ")),
            HasSubstr("submit it anew to begin at step 0")));
  coordinator.controller().Settle();
  EXPECT_EQ(end, absl::OkStatus());
}

}  // namespace
}  // namespace nibble
