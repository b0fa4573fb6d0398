// Verbs of workers, queues and checkpoints, and the program itself.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client_remote/testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class ClusterVerbsTest : public RemoteClusterTest {};

// The program itself, whose noun checkpoint has both sources.
class CheckpointVerbsTest : public RemoteClusterTest {
 protected:
  Outcome Nibble(const std::vector<std::string>& arguments) const override {
    return NibbleProcess::Run(arguments);
  }

  CheckpointVerbsTest() {
    worker_.Run();
    for (const int64_t step : {100, 200}) {
      worker_.Obey(step);
      worker_.Store(step);
    }
  }

  // The worker reports the result of the tasks that the coordinator requests.
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

  // The worker moves the shards of a deleted checkpoint to its trash, or back.
  void Trash(int64_t step, const std::string& reason) {
    worker_.report.clear_shards();
    for (int32_t rank = 0; rank < 2; ++rank) {
      v1::TrashedShard& shard = *worker_.report.add_trash();
      shard.mutable_ref()->set_job(job_);
      shard.mutable_ref()->set_step(step);
      shard.mutable_ref()->set_attempt(1);
      shard.set_rank(rank);
      shard.set_world(2);
      shard.set_bytes(1000);
      shard.set_manifest_crc32c(7);
      shard.set_kind(v1::DELETION_KIND_REQUESTED);
      shard.set_reason(reason);
      shard.set_age_ms(60'000);
    }
    worker_.report.set_all_shards(true);
    ASSERT_EQ(worker_.Report(), absl::OkStatus());
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
  EXPECT_THAT(Err(1, {"checkpoint", "delete", "train-1@100"}), HasSubstr("pin"));
  EXPECT_EQ(Nibble({"checkpoint", "unpin", "train-1@100"}).out,
            "train-1@100 is no longer pinned\n");
  EXPECT_EQ(Nibble({"checkpoint", "unpin", "train-1@100"}).exit_code, 102);
  EXPECT_EQ(Json({"checkpoint", "pin", "train-1@100"})["pins"].size(), 1u);
  EXPECT_EQ(Nibble({"checkpoint", "unpin", "train-1@100"}).exit_code, 0);
  EXPECT_EQ(Nibble({"checkpoint", "delete", "train-1@100", "--reason", "old"}).out,
            "train-1@100 is deleted\n");
  EXPECT_EQ(Json({"checkpoint", "list", job_})["checkpoints"].size(), 1u);
  EXPECT_THAT(Nibble({"checkpoint", "delete", job_}).err,
              HasSubstr("'train-1' has no step; name it train-1@STEP"));
}

TEST_F(CheckpointVerbsTest, ADeletedCheckpointIsInTheHistoryAndIsRestoredFromTheTrash) {
  EXPECT_THAT(Out({"checkpoint", "history", job_}), HasSubstr("REASON"));
  Out({"checkpoint", "delete", "train-1@100", "--reason", "by mistake"});
  EXPECT_THAT(Out({"checkpoint", "history", "train"}),
              AllOf(HasSubstr("100        1  requested"), HasSubstr("by mistake")));
  const auto deletion = Json({"checkpoint", "history", job_})["deletions"][0];
  EXPECT_EQ(deletion["kind"], "DELETION_KIND_REQUESTED");
  EXPECT_EQ(deletion["holders"][0], "w1");
  EXPECT_GT(deletion["order"]["sequence"], 0);

  EXPECT_THAT(Err(102, {"checkpoint", "trash", "restore", job_, "100"}),
              AllOf(HasSubstr("nibble checkpoint trash restore: "),
                    HasSubstr("no present worker has a shard")));
  Trash(100, "by mistake");
  EXPECT_THAT(Out({"checkpoint", "trash", "list"}),
              AllOf(HasSubstr("train-1   100        1  2 of 2"), HasSubstr("requested"),
                    HasSubstr("1m00s"), HasSubstr("by mistake")));
  EXPECT_EQ(Json({"checkpoint", "trash", "list", job_})["checkpoints"][0]["bytes"], 2000);
  EXPECT_EQ(Json({"worker", "list"})["workers"][0]["trash_bytes"], 2000);
  EXPECT_THAT(Out({"worker", "describe", "w1"}), HasSubstr("2.0 kB of deleted checkpoints"));

  const Outcome restored =
      Nibble({"checkpoint", "trash", "restore", job_, "100", "--reason", "still needed"});
  EXPECT_EQ(restored.out, "train-1@100 of attempt 1 is being restored\n");
  EXPECT_THAT(restored.err, HasSubstr("run 'nibble checkpoint list train-1'"));
  EXPECT_THAT(Out({"checkpoint", "trash", "list"}), HasSubstr("requested, being restored"));
  EXPECT_THAT(Out({"checkpoint", "history", job_}), HasSubstr("requested, being restored"));
  EXPECT_THAT(Err(2, {"checkpoint", "trash", "restore", job_, "x"}), HasSubstr("STEP"));
  EXPECT_EQ(Nibble({"help", "checkpoint", "trash", "restore"}).exit_code, 0);
}

TEST_F(CheckpointVerbsTest, VerifyWaitsForTheResult) {
  EXPECT_THAT(Out({"checkpoint", "verify", "train-1@200", "--no-wait"}),
              HasSubstr("verification 1 of train-1@200 is requested"));
  EndTasks(v1::CHECKPOINT_TASK_STATE_DONE, "24 chunks are right");
  EXPECT_THAT(Nibble({"checkpoint", "describe", "train-1@200"}).out,
              HasSubstr("is done on w1: 24 chunks are right"));
  EXPECT_THAT(Err(101, {"checkpoint", "verify", "train-1@200", "--timeout", "50ms"}),
              HasSubstr("to see its result"));
  EndTasks(v1::CHECKPOINT_TASK_STATE_FAILED, "cannot read");
}

TEST_F(CheckpointVerbsTest, AnExportFailsIfTheWorkerFails) {
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

TEST_F(CheckpointVerbsTest, ARelativeDestinationIsMadeAbsolute) {
  const std::string whole = (std::filesystem::current_path() / "kept/out").string();
  const Outcome asked = Nibble({"checkpoint", "export", job_, "./kept/out", "--no-wait"});
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_THAT(asked.out, HasSubstr("export 1 of train-1@200 is requested to " + whole + "\n"));
  EXPECT_THAT(asked.err, HasSubstr("'./kept/out' is " + whole + " on the machine of the worker"));
  EXPECT_EQ(Json({"checkpoint", "describe", job_})["checkpoint"]["tasks"][0]["destination"], whole);
  EXPECT_THAT(Nibble({"checkpoint", "export", "--help"}).out,
              HasSubstr("on the machine of the worker"));
}

TEST_F(CheckpointVerbsTest, OptionsOfTheOtherSourceAreRefused) {
  const Outcome job = Nibble({"checkpoint", "export", job_, "/srv/out", "--dtype", "fp32"});
  EXPECT_EQ(job.exit_code, 2);
  EXPECT_THAT(job.err, HasSubstr("--dtype applies to run directories only; 'train-1' is a job"));
  const Outcome directory = Nibble({"checkpoint", "verify", "./runs", "--no-wait"});
  EXPECT_EQ(directory.exit_code, 2);
  EXPECT_THAT(directory.err,
              HasSubstr("--no-wait applies to jobs of a cluster only; './runs' is a directory"));
}

TEST_F(CheckpointVerbsTest, AnExistingDirectoryIsMeantUnlessAServerIsGiven) {
  const std::string directory = testing::TempDir() + "train-1";
  std::filesystem::create_directory(directory);
  const Outcome here = Nibble({"checkpoint", "list", directory});
  EXPECT_NE(here.exit_code, 0);
  EXPECT_THAT(here.err, HasSubstr(directory));
  EXPECT_THAT(Err(102, {"checkpoint", "list", directory, "--server", cluster_.address()}),
              HasSubstr("job: there is no '"));
  EXPECT_EQ(Nibble({"checkpoint", "list", "train-1", "--server", cluster_.address()}).exit_code, 0);
}

TEST_F(ClusterVerbsTest, WorkersAreListedDescribedDrainedAndUncordoned) {
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_);
  worker.Run();
  EXPECT_THAT(Out({"worker", "list"}),
              AllOf(HasSubstr("WORKER"), HasSubstr("w1"), HasSubstr("open"), HasSubstr("cpu"),
                    HasSubstr("train-1")));
  EXPECT_EQ(Json({"worker", "list"})["workers"][0]["used_slots"], 2);
  const Outcome described = Nibble({"worker", "describe", "w1"});
  EXPECT_THAT(described.out, AllOf(HasSubstr("worker        w1 at w1:7000"),
                                   HasSubstr("slots         2 of 2 used")));
  const Outcome cordoned = Nibble({"worker", "drain", "w1", "--cordon", "--reason", "new fan"});
  EXPECT_EQ(cordoned.out, "w1 is cordoned; it still runs train-1\n");
  EXPECT_THAT(Nibble({"worker", "describe", "w1"}).out, HasSubstr("cordoned: new fan"));
  EXPECT_EQ(Json({"worker", "drain", "w1"})["mode"], "WORKER_MODE_DRAINING");
  EXPECT_EQ(Nibble({"worker", "uncordon", "w1", "--clear-flags"}).out, "w1 is open\n");
  EXPECT_THAT(Err(102, {"worker", "describe", "w9"}), HasSubstr("worker: there is no 'w9'"));
  EXPECT_EQ(Nibble({"worker", "drain", "w9"}).exit_code, 102);
}

TEST_F(ClusterVerbsTest, QueuesAreCreatedChangedListedAndDeleted) {
  EXPECT_EQ(
      Out({"queue", "set", "nights", "--quota", "8", "--borrow", "unbounded", "--cohort", "lab"}),
      "nights: quota 8, borrows unbounded, cohort lab, revision 1\n");
  const nlohmann::json changed = Json({"queue", "set", "nights", "--quota", "4"});
  EXPECT_EQ(changed["quota_slots"], 4);
  EXPECT_EQ(changed["borrow_slots"], -1);
  EXPECT_EQ(changed["revision"], 2);
  EXPECT_THAT(Nibble({"queue", "list"}).out,
              AllOf(HasSubstr("QUOTA"), HasSubstr("nights"), HasSubstr("default")));
  EXPECT_EQ(Json({"queue", "list"})["queues"].size(), 2u);
  EXPECT_THAT(Err(2, {"queue", "set", "nights", "--quota", "many"}), HasSubstr("--quota: 'many'"));
  EXPECT_THAT(Nibble({"queue", "set", "nights", "--expected-revision", "1"}).err,
              HasSubstr("expected_revision"));
  EXPECT_EQ(Nibble({"queue", "delete", "nights"}).out, "nights is deleted\n");
  EXPECT_EQ(Nibble({"queue", "delete", "nights"}).exit_code, 102);
  EXPECT_EQ(Nibble({"queue", "delete", "default"}).exit_code, 1);
}

// The output of a shell; a test failure if its exit code is another.
std::string Bash(const std::string& script, int exit_code = 0) {
  const std::string path = testing::TempDir() + "script.sh";
  std::ofstream(path) << script;
  std::FILE* const shell = popen(absl::StrCat("bash ", path, " 2>&1").c_str(), "r");
  std::string output;
  for (int c = std::fgetc(shell); c != EOF; c = std::fgetc(shell)) output += static_cast<char>(c);
  const int status = pclose(shell);
  EXPECT_EQ(WEXITSTATUS(status), exit_code) << output;
  return output;
}

// The completions that bash offers for the last word.
std::vector<std::string> Completions(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) absl::StrAppend(&line, " '", word, "'");
  // The script calls the program by its name.
  const std::string output = Bash(absl::StrCat(
      "nibble() { ", std::filesystem::absolute(kNibbleProgram).string(), " \"$@\"; }\n",
      "source <(nibble completion bash) || exit 9\nCOMP_WORDS=(nibble", line,
      ")\nCOMP_CWORD=", words.size(), "\n_nibble\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"));
  return absl::StrSplit(output, '\n', absl::SkipEmpty());
}

TEST(ProgramTest, TheProgramSharesNoProtocolBuffersWithLibraries) {
  const std::string program = std::filesystem::absolute(kNibbleProgram).string();
  EXPECT_THAT(Bash(absl::StrCat("readelf -d ", program, " | grep NEEDED")),
              Not(HasSubstr("libprotobuf")));
  // Mangled names: …N6google8protobuf….
  Bash(absl::StrCat("readelf --wide --dyn-syms ", program, " | grep google8protobuf"), 1);
}

TEST(ProgramTest, OneProgramTrainsATokenizerAndCallsACoordinator) {
  RemoteCluster cluster;
  const std::string directory = testing::TempDir() + "tokens";
  std::filesystem::remove_all(directory);
  std::ofstream text(testing::TempDir() + "text.txt");
  for (int i = 0; i < 2000; ++i) text << "the quick brown fox " << i * 7919 % 1000 << " jumps.\n\n";
  text.close();
  Bash(absl::StrCat(kNibbleProgram, " data tokenize ", testing::TempDir(), "text.txt --output-dir ",
                    directory, " --train-tokenizer 300"));
  const std::string job =
      Bash(absl::StrCat(kNibbleProgram, " job submit ", RemoteCluster::SpecFile()));
  EXPECT_EQ(job, "train-1\n");
  EXPECT_THAT(Bash(absl::StrCat(kNibbleProgram, " job describe train-1 -o yaml")),
              HasSubstr("state: JOB_STATE_QUEUED"));
}

TEST(CompletionTest, NounsVerbsAndOptionsAreCompleted) {
  EXPECT_THAT(Completions({"qu"}), ElementsAre("quantize", "queue"));
  EXPECT_THAT(Completions({"job", "c"}), UnorderedElementsAre("checkpoint", "cancel", "compare"));
  EXPECT_THAT(Completions({"job", "submit", "--max-"}),
              ElementsAre("--max-slots", "--max-restarts", "--max-backoff"));
  EXPECT_THAT(Completions({"worker", "list", "-o", ""}), ElementsAre("table", "json", "yaml"));
  EXPECT_THAT(Completions({"quantize", "--form"}), ElementsAre("--format", "--formula"));
  EXPECT_THAT(Completions({"checkpoint", "tr"}), ElementsAre("trash"));
  EXPECT_THAT(Completions({"checkpoint", "trash", ""}), ElementsAre("list", "restore"));
  EXPECT_THAT(Completions({"checkpoint", "trash", "restore", "--att"}), ElementsAre("--attempt"));
  EXPECT_THAT(Completions({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
  // Options before the verb, whose values are no nouns.
  EXPECT_THAT(Completions({"-o", "json", "que"}), ElementsAre("queue"));
  EXPECT_THAT(Completions({"--server", "10.0.0.1", ":", "7700", "job", "ca"}),
              ElementsAre("cancel"));
  EXPECT_THAT(Completions({"--server", "=", "10.0.0.1", ":", "7700", "job", "ca"}),
              ElementsAre("cancel"));
}

TEST(CompletionTest, NamesComeFromTheCluster) {
  RemoteCluster cluster;
  cluster.Submit("train");
  cluster.Submit("tiny");
  RunningWorker worker(cluster);
  worker.Run();
  EXPECT_THAT(Completions({"job", "describe", ""}), ElementsAre("tiny-2", "train-1"));
  EXPECT_THAT(Completions({"recipe", "set", "tr"}), ElementsAre("train-1"));
  EXPECT_THAT(Completions({"checkpoint", "list", "tin"}), Contains("tiny-2"));
  EXPECT_THAT(Completions({"checkpoint", "trash", "restore", "tr"}), ElementsAre("train-1"));
  EXPECT_THAT(Completions({"worker", "drain", ""}), ElementsAre("w1"));
  EXPECT_THAT(Completions({"queue", "set", "d"}), ElementsAre("default"));
  // Bash splits an address at its colon.
  const std::string port = cluster.address().substr(cluster.address().rfind(':') + 1);
  unsetenv("NIBBLE_SERVER");
  EXPECT_THAT(Completions({"job", "kill", "--server", "127.0.0.1", ":", port, "ti"}),
              ElementsAre("tiny-2"));
}

TEST(CompletionTest, WithoutACoordinatorThereAreNoNames) {
  RemoteCluster cluster;
  cluster.Stop();
  EXPECT_THAT(Completions({"job", "describe", ""}), IsEmpty());
  cluster.Start();
}

TEST(CompletionTest, OtherShellsHaveScripts) {
  const std::string fish = RemoteCluster::Nibble({"completion", "fish"}).out;
  EXPECT_THAT(fish, HasSubstr("complete -c nibble -n __fish_use_subcommand -f -a job "));
  EXPECT_THAT(fish, HasSubstr("__fish_seen_subcommand_from submit' -l dry-run"));
  EXPECT_THAT(fish, HasSubstr("__fish_seen_subcommand_from trash; and "
                              "__fish_seen_subcommand_from restore' -l attempt"));
  const std::string zsh = RemoteCluster::Nibble({"completion", "zsh"}).out;
  EXPECT_THAT(zsh, HasSubstr("#compdef nibble\n"));
  EXPECT_THAT(zsh, HasSubstr("bashcompinit"));
  EXPECT_EQ(RemoteCluster::Nibble({"completion", "tcsh"}).exit_code, 2);
}

}  // namespace

}  // namespace nibble
