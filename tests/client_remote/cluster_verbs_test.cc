// `nibble checkpoint …` of jobs, `nibble worker …`, `nibble queue …`.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client_remote/nibble_process.h"
#include "tests/client_remote/remote_cluster.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ClusterVerbsTest : public RemoteClusterTest {};

// The program itself, whose verbs are also those of directories.
class CheckpointVerbsTest : public RemoteClusterTest {
 protected:
  static Outcome Nibble(const std::vector<std::string>& arguments) {
    return NibbleProcess::Run(arguments);
  }
  static nlohmann::json Json(const std::vector<std::string>& arguments) {
    return RemoteCluster::Json(arguments, NibbleProcess::Run);
  }

  CheckpointVerbsTest() {
    worker_.Run();
    for (const int64_t step : {100, 200}) {
      worker_.Obey(step);
      worker_.Store(step);
    }
  }

  // The worker carries out what is asked of it, which has come to the coordinator.
  void EndTasks(v1::CheckpointTaskState state, const std::string& detail) {
    cluster_.coordinator().Tick();
    ASSERT_EQ(worker_.Report(), absl::OkStatus());
    ASSERT_GT(worker_.desired.tasks_size(), 0);
    for (const v1::DesiredTask& task : worker_.desired.tasks()) {
      v1::TaskReport& report = *worker_.report.add_tasks();
      *report.mutable_ref() = task.ref();
      report.set_task(task.task());
      report.set_state(state);
      report.set_detail(detail);
    }
    ASSERT_EQ(worker_.Report(), absl::OkStatus());
    worker_.report.clear_tasks();
  }

  const std::string job_ = cluster_.Submit();
  RunningWorker worker_{cluster_};
};

TEST_F(CheckpointVerbsTest, AJobsCheckpointsAreListedAndDescribed) {
  const Outcome listed = Nibble({"checkpoint", "list", job_});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_THAT(listed.out, AllOf(HasSubstr("STEP"), HasSubstr("100        1  committed"),
                                HasSubstr("200        1  committed")));
  EXPECT_LT(listed.out.find(" 100 "), listed.out.find(" 200 "));
  EXPECT_EQ(Json({"checkpoint", "list", job_})["checkpoints"][0]["ref"]["step"], 200);
  const Outcome newest = Nibble({"checkpoint", "describe", job_});
  EXPECT_THAT(newest.out, AllOf(HasSubstr("train-1@200 of attempt 1"), HasSubstr("2 of 2 durable"),
                                HasSubstr("rank 1, 1.0 kB, on w1")));
  EXPECT_EQ(Json({"checkpoint", "describe", "train-1@100"})["checkpoint"]["world"], 2);
  const Outcome none = Nibble({"checkpoint", "describe", "train-1@7"});
  EXPECT_EQ(none.exit_code, 102);
  EXPECT_THAT(none.err, HasSubstr("no committed checkpoint at step 7"));
  EXPECT_THAT(Nibble({"checkpoint", "describe", "train-1@x"}).err, HasSubstr("JOB@STEP"));
  EXPECT_EQ(Nibble({"checkpoint", "list", "none"}).exit_code, 102);
}

TEST_F(CheckpointVerbsTest, PinsKeepACheckpointFromBeingDeleted) {
  EXPECT_EQ(Nibble({"checkpoint", "pin", "train-1@100"}).out, "train-1@100 is pinned\n");
  const Outcome refused = Nibble({"checkpoint", "delete", "train-1@100"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("pin"));
  EXPECT_EQ(Nibble({"checkpoint", "unpin", "train-1@100"}).out,
            "train-1@100 is no longer pinned\n");
  EXPECT_EQ(Nibble({"checkpoint", "unpin", "train-1@100"}).exit_code, 102);
  EXPECT_EQ(Json({"checkpoint", "pin", "train-1@100"})["pins"].size(), 1u);
  EXPECT_EQ(Nibble({"checkpoint", "unpin", "train-1@100"}).exit_code, 0);
  EXPECT_EQ(Nibble({"checkpoint", "delete", "train-1@100", "--reason", "old"}).out,
            "train-1@100 is deleted\n");
  EXPECT_EQ(Json({"checkpoint", "list", job_})["checkpoints"].size(), 1u);
  EXPECT_THAT(Nibble({"checkpoint", "delete", job_}).err, HasSubstr("say which: train-1@STEP"));
}

TEST_F(CheckpointVerbsTest, AVerificationIsWaitedForAndItsEndIsTheExitCode) {
  const Outcome asked = Nibble({"checkpoint", "verify", "train-1@200", "--no-wait"});
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_THAT(asked.out, HasSubstr("verification 1 of train-1@200 is requested"));
  EndTasks(v1::CHECKPOINT_TASK_STATE_DONE, "24 chunks are right");
  EXPECT_THAT(Nibble({"checkpoint", "describe", "train-1@200"}).out,
              HasSubstr("is done on w1: 24 chunks are right"));
  const Outcome late = Nibble({"checkpoint", "verify", "train-1@200", "--timeout", "50ms"});
  EXPECT_EQ(late.exit_code, 101);
  EXPECT_THAT(late.err, HasSubstr("tells its end"));
  EndTasks(v1::CHECKPOINT_TASK_STATE_FAILED, "cannot read");
}

TEST_F(CheckpointVerbsTest, AnExportNamesItsDestinationAndFailsAsTheWorkerDoes) {
  const Outcome asked = Nibble({"checkpoint", "export", job_, "/srv/out", "--no-wait"});
  EXPECT_THAT(asked.out, HasSubstr("export 1 of train-1@200 is requested"));
  EndTasks(v1::CHECKPOINT_TASK_STATE_DONE, "");
  NibbleProcess exporting({"checkpoint", "export", "train-1@100", "/srv/out2"});
  EXPECT_THAT(exporting.ErrLine(), HasSubstr("export 1 of train-1@100 is requested to /srv/out2; "
                                             "waiting for its end"));
  EndTasks(v1::CHECKPOINT_TASK_STATE_FAILED, "the disk is full");
  EXPECT_THAT(exporting.OutLine(), HasSubstr("is failed on w1 to /srv/out2: the disk is full"));
  EXPECT_EQ(exporting.Wait(), 1);
}

TEST_F(CheckpointVerbsTest, ARelativeDestinationIsTakenFromHereAndToldInWhole) {
  const std::string whole = (std::filesystem::current_path() / "kept/out").string();
  const Outcome asked = Nibble({"checkpoint", "export", job_, "./kept/out", "--no-wait"});
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_THAT(asked.out, HasSubstr("export 1 of train-1@200 is requested to " + whole + "\n"));
  EXPECT_THAT(asked.err, HasSubstr("'./kept/out' is " + whole + ", on the worker"));
  EXPECT_EQ(Json({"checkpoint", "describe", job_})["checkpoint"]["tasks"][0]["destination"], whole);
  EXPECT_THAT(Nibble({"checkpoint", "export", "--help"}).out,
              HasSubstr("on that worker's machine"));
}

TEST_F(CheckpointVerbsTest, WhatMeansNothingForAJobOrADirectoryIsRefused) {
  const Outcome job = Nibble({"checkpoint", "export", job_, "/srv/out", "--dtype", "fp32"});
  EXPECT_EQ(job.exit_code, 2);
  EXPECT_THAT(job.err, HasSubstr("--dtype goes with a run's directory; 'train-1' is none"));
  const Outcome directory = Nibble({"checkpoint", "verify", "./runs", "--no-wait"});
  EXPECT_EQ(directory.exit_code, 2);
  EXPECT_THAT(directory.err, HasSubstr("--no-wait goes with a job of the cluster; './runs'"));
}

TEST_F(CheckpointVerbsTest, ADirectoryHereIsADirectoryUnlessAServerIsNamed) {
  const std::string directory = testing::TempDir() + "train-1";
  std::filesystem::create_directory(directory);
  const Outcome here = Nibble({"checkpoint", "list", directory});
  EXPECT_NE(here.exit_code, 0);
  EXPECT_THAT(here.err, HasSubstr(directory));
  const Outcome there = Nibble({"checkpoint", "list", directory, "--server", cluster_.address()});
  EXPECT_EQ(there.exit_code, 102);
  EXPECT_THAT(there.err, HasSubstr("job: there is no '"));
  EXPECT_EQ(Nibble({"checkpoint", "list", "train-1", "--server", cluster_.address()}).exit_code, 0);
}

TEST_F(ClusterVerbsTest, WorkersAreListedDescribedDrainedAndTakenBack) {
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_);
  worker.Run();
  const Outcome listed = Nibble({"worker", "list"});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_THAT(listed.out, AllOf(HasSubstr("WORKER"), HasSubstr("w1"), HasSubstr("open"),
                                HasSubstr("cpu"), HasSubstr("train-1")));
  EXPECT_EQ(Json({"worker", "list"})["workers"][0]["used_slots"], 2);
  const Outcome described = Nibble({"worker", "describe", "w1"});
  EXPECT_THAT(described.out, AllOf(HasSubstr("worker        w1 at w1:7000"),
                                   HasSubstr("slots         2 of 2 used")));
  const Outcome cordoned = Nibble({"worker", "drain", "w1", "--cordon", "--reason", "new fan"});
  EXPECT_EQ(cordoned.out, "w1 is cordoned; on it still: train-1\n");
  EXPECT_THAT(Nibble({"worker", "describe", "w1"}).out, HasSubstr("cordoned: new fan"));
  EXPECT_EQ(Json({"worker", "drain", "w1"})["mode"], "WORKER_MODE_DRAINING");
  EXPECT_EQ(Nibble({"worker", "uncordon", "w1", "--clear-flags"}).out, "w1 is open\n");
  const Outcome none = Nibble({"worker", "describe", "w9"});
  EXPECT_EQ(none.exit_code, 102);
  EXPECT_THAT(none.err, HasSubstr("worker: there is no 'w9'"));
  EXPECT_EQ(Nibble({"worker", "drain", "w9"}).exit_code, 102);
}

TEST_F(ClusterVerbsTest, QueuesAreMadeChangedListedAndDeleted) {
  const Outcome made = Nibble(
      {"queue", "set", "nights", "--quota", "8", "--borrow", "unbounded", "--cohort", "lab"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(made.out, "nights: quota 8, borrows unbounded, cohort lab, revision 1\n");
  const nlohmann::json changed = Json({"queue", "set", "nights", "--quota", "4"});
  EXPECT_EQ(changed["quota_slots"], 4);
  EXPECT_EQ(changed["borrow_slots"], -1);
  EXPECT_EQ(changed["revision"], 2);
  EXPECT_THAT(Nibble({"queue", "list"}).out,
              AllOf(HasSubstr("QUOTA"), HasSubstr("nights"), HasSubstr("default")));
  EXPECT_EQ(Json({"queue", "list"})["queues"].size(), 2u);
  const Outcome many = Nibble({"queue", "set", "nights", "--quota", "many"});
  EXPECT_EQ(many.exit_code, 2);
  EXPECT_THAT(many.err, HasSubstr("--quota: 'many'"));
  EXPECT_THAT(Nibble({"queue", "set", "nights", "--expected-revision", "1"}).err,
              HasSubstr("expected_revision"));
  EXPECT_EQ(Nibble({"queue", "delete", "nights"}).out, "nights is deleted\n");
  EXPECT_EQ(Nibble({"queue", "delete", "nights"}).exit_code, 102);
  EXPECT_EQ(Nibble({"queue", "delete", "default"}).exit_code, 1);
}

}  // namespace
}  // namespace nibble
