// Verbs of jobs and their recipes.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/text/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client_remote/testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class JobVerbsTest : public RemoteClusterTest {};

TEST_F(JobVerbsTest, ASubmittedJobIsListedAndDescribed) {
  const Outcome submitted = Nibble({"job", "submit", RemoteCluster::SpecFile()});
  EXPECT_EQ(submitted.exit_code, 0) << submitted.err;
  EXPECT_EQ(submitted.out, "train-1\n");
  EXPECT_THAT(submitted.err, IsEmpty());
  const Outcome listed = Nibble({"job", "list"});
  EXPECT_THAT(listed.out,
              AllOf(HasSubstr("JOB "), HasSubstr("train-1  queued"), HasSubstr("0/1000 (0%)")));
  cluster_.coordinator().Tick();
  EXPECT_THAT(
      Out({"job", "describe", "train-1"}),
      AllOf(HasSubstr("state         queued since "), HasSubstr("why           needs 2 slots"),
            HasSubstr("2048 tokens per step on 2 ranks of cpu"),
            HasSubstr("loss          none reported since the coordinator started\n"),
            HasSubstr("recipe        nvfp4\n              revision 1 will be first"),
            HasSubstr("queue default, priority 0, ranks 2")));
  const nlohmann::json json = Json({"job", "describe", "train-1", "--spec"});
  EXPECT_EQ(json["job"]["id"], "train-1");
  EXPECT_EQ(json["job"]["state"], "JOB_STATE_QUEUED");
  EXPECT_EQ(json["job"]["shape"]["steps"], 1000);
  // Relative paths are relative to the directory of the command, not of the ranks.
  EXPECT_THAT(json["spec_yaml"].get<std::string>(),
              HasSubstr("- path: " + std::filesystem::current_path().string() + "/corpus.txt\n"));
  EXPECT_THAT(Nibble({"job", "list", "-o", "yaml"}).out, HasSubstr("jobs:\n  - id: train-1\n"));
}

TEST_F(JobVerbsTest, ASpecWithoutRelativePathsIsSubmittedUnchanged) {
  std::string text = TestCoordinator::Spec("train", 2);
  text.replace(text.find("corpus.txt"), 10, "/corpus.txt");
  text += "# as it was written\n";
  const std::string path = testing::TempDir() + "letter.yaml";
  std::ofstream(path, std::ios::binary) << text;
  ASSERT_EQ(Nibble({"job", "submit", path}).exit_code, 0);
  EXPECT_EQ(Json({"job", "describe", "train-1", "--spec"})["spec_yaml"], text);
}

TEST_F(JobVerbsTest, TheListFitsEightyColumnsUnlessItIsWide) {
  const std::string name = "a-name-of-forty-characters-and-some-more";
  const std::string job = cluster_.Submit(name);
  cluster_.coordinator().Tick();
  const std::string listed = Out({"job", "list"});
  for (const absl::string_view line : absl::StrSplit(listed, '\n')) {
    EXPECT_LE(WidthOf(line), 80u) << line;
  }
  EXPECT_THAT(listed, AllOf(HasSubstr(name.substr(0, 23) + "…"), HasSubstr("  needs ")));
  EXPECT_THAT(Out({"job", "list", "--wide"}), AllOf(HasSubstr(job), HasSubstr("needs 2 slots")));
}

TEST_F(JobVerbsTest, ADescriptionHasTheLatestLossAndTheRecipeInEffect) {
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_);
  worker.Run();
  worker.ReportSteps(0, {5.5, 5.25});
  EXPECT_THAT(Out({"job", "describe", job}), AllOf(HasSubstr("loss          5.2500 at step 1\n"),
                                                   HasSubstr("recipe        nvfp4\n")));
}

TEST_F(JobVerbsTest, OptionsSetTheScheduling) {
  ASSERT_EQ(Nibble({"queue", "set", "nights"}).exit_code, 0);
  const std::string command = absl::StrCat(
      "job submit ", RemoteCluster::SpecFile(),
      " --name other --queue nights --priority 7 --min-slots 2 --max-slots 9 --require rack=a "
      "--prefer zone=b --prefer-fp4 --max-restarts 1 --backoff 2s --max-backoff 1m");
  const nlohmann::json json = Json(absl::StrSplit(command, ' '));
  EXPECT_EQ(json["id"], "other-1");
  const nlohmann::json& scheduling = json["scheduling"];
  EXPECT_EQ(scheduling["queue"], "nights");
  EXPECT_EQ(scheduling["priority"], 7);
  EXPECT_EQ(scheduling["allowed_ranks"], nlohmann::json::parse("[2, 4, 8]"));
  EXPECT_EQ(scheduling["required_labels"][0]["value"], "a");
  EXPECT_EQ(scheduling["preferred_labels"][0]["key"], "zone");
  EXPECT_EQ(scheduling["wants_fp4_tensor_cores"], true);
  EXPECT_EQ(json["restart_policy"]["max_without_progress"], 1);
  EXPECT_EQ(json["restart_policy"]["initial_backoff_ms"], 2000);
  EXPECT_EQ(json["restart_policy"]["max_backoff_ms"], 60'000);
}

TEST_F(JobVerbsTest, UnsetRestartOptionsKeepTheCoordinatorsValues) {
  nlohmann::json policy = Json({"job", "submit", RemoteCluster::SpecFile()})["restart_policy"];
  policy["max_without_progress"] = 9;
  EXPECT_EQ(
      Json({"job", "submit", RemoteCluster::SpecFile(), "--max-restarts", "9"})["restart_policy"],
      policy);
}

TEST_F(JobVerbsTest, SettingsOverrideTheSpecAndConflictsAreErrors) {
  const std::string spec = RemoteCluster::SpecFile();
  const nlohmann::json job =
      Json({"job", "submit", spec, "--set", "training.steps=77", "--set", "scheduling.priority=4",
            "--set", "recipe.set.wgrad.rounding=nearest", "--env", "WORD=1 = one"});
  EXPECT_EQ(job["shape"]["steps"], 77);
  EXPECT_EQ(job["scheduling"]["priority"], 4);
  const std::string stored =
      Json({"job", "describe", "train-1", "--spec"})["spec_yaml"].get<std::string>();
  EXPECT_THAT(stored, HasSubstr("WORD: \"1 = one\""));
  EXPECT_THAT(Nibble({"job", "submit", spec, "--set", "training.stepz=5"}).err,
              HasSubstr("did you mean steps?"));
  EXPECT_THAT(
      Nibble({"job", "submit", spec, "--priority", "1", "--set", "scheduling.priority=2"}).err,
      HasSubstr("scheduling.priority: an earlier setting sets scheduling.priority"));
  EXPECT_THAT(Nibble({"job", "submit", spec, "--env", "LD_PRELOAD=x.so"}).err,
              HasSubstr("env.LD_PRELOAD: reserved"));
}

TEST_F(JobVerbsTest, ADryRunStoresNothing) {
  const Outcome dry = Nibble({"job", "submit", RemoteCluster::SpecFile(), "--dry-run"});
  EXPECT_EQ(dry.exit_code, 0);
  EXPECT_THAT(dry.out,
              AllOf(HasSubstr("job           train-1 of "), HasSubstr("\nstate         queued\n")));
  EXPECT_THAT(dry.err, HasSubstr("nothing was stored"));
  EXPECT_EQ(Json({"job", "list"})["jobs"].size(), 0u);
}

TEST_F(JobVerbsTest, ErrorsNameTheirField) {
  const std::string spec = RemoteCluster::SpecFile();
  const Outcome fields =
      Nibble({"job", "submit", RemoteCluster::SpecFile("bad", 2, "trainng: {}\n")});
  EXPECT_EQ(fields.exit_code, 1);
  EXPECT_THAT(fields.out, IsEmpty());
  EXPECT_THAT(fields.err, AllOf(HasSubstr("nibble job submit: "), HasSubstr("bad_spec.yaml"),
                                HasSubstr("trainng")));
  EXPECT_THAT(Nibble({"job", "submit", spec, "--ranks", "3"}).err,
              HasSubstr("resources.allowed_ranks[0]: 3 does not divide"));
  EXPECT_THAT(Nibble({"job", "submit", spec, "--priority", "5000"}).err, HasSubstr("priority"));
  EXPECT_THAT(Err(102, {"job", "submit", spec, "--queue", "none"}), HasSubstr("queue"));
  EXPECT_EQ(Nibble({"job", "submit", "/no/such/file"}).exit_code, 102);
}

TEST_F(JobVerbsTest, MisuseIsAUsageError) {
  EXPECT_EQ(Nibble({"job"}).exit_code, 2);
  EXPECT_EQ(Nibble({"job", "describe"}).exit_code, 2);
  EXPECT_EQ(Nibble({"job", "list", "-o", "xml"}).exit_code, 2);
  EXPECT_EQ(Nibble({"job", "list", "--state", "sleeping"}).exit_code, 2);
  EXPECT_EQ(Nibble({"job", "list", "--timeout", "soon"}).exit_code, 2);
  EXPECT_EQ(Nibble({"job", "compare", "train-1"}).exit_code, 2);
  EXPECT_EQ(Nibble({"job", "submit", "x", "--ranks", "2", "--min-slots", "2"}).exit_code, 2);
  EXPECT_EQ(Nibble({"job", "submit", "--help"}).exit_code, 0);
}

TEST_F(JobVerbsTest, AUniquePrefixNamesAJob) {
  cluster_.Submit("train");
  cluster_.Submit("other");
  const Outcome described = Nibble({"job", "describe", "oth"});
  EXPECT_EQ(described.exit_code, 0);
  EXPECT_THAT(described.out, HasSubstr("other-2"));
  EXPECT_THAT(described.err, HasSubstr("'oth' is other-2"));
  cluster_.Submit("train");
  EXPECT_THAT(Err(1, {"job", "kill", "tra"}),
              HasSubstr("job: 'tra' matches train-3 (queued), train-1 (queued)"));
  const Outcome none = Nibble({"job", "describe", "trian-3"});
  EXPECT_EQ(none.exit_code, 102);
  EXPECT_THAT(none.err, HasSubstr("did you mean 'train-"));
}

TEST_F(JobVerbsTest, ANameIsItsOnlyUnfinishedJobOrElseItsNewestAndTheCommandSaysSo) {
  const std::string first = cluster_.Submit("train");
  const std::string second = cluster_.Submit("train");
  ASSERT_EQ(Nibble({"job", "kill", second}).exit_code, 0);
  const Outcome unfinished = Nibble({"job", "priority", "train", "3"});
  EXPECT_EQ(unfinished.exit_code, 0);
  EXPECT_THAT(unfinished.out, HasSubstr(first + " is queued"));
  EXPECT_THAT(unfinished.err,
              HasSubstr("'train' is train-1, the only unfinished of 2 jobs with this name"));
  ASSERT_EQ(Nibble({"job", "kill", first}).exit_code, 0);
  const Outcome newest = Nibble({"job", "events", "train", "-o", "json"});
  EXPECT_THAT(newest.err, HasSubstr("'train' is train-2, the newest of 2 jobs with this name"));
  EXPECT_THAT(newest.out, HasSubstr("train-2"));
}

TEST_F(JobVerbsTest, ListsAreFiltered) {
  const std::string first = cluster_.Submit("train");
  const std::string second = cluster_.Submit("train");
  ASSERT_EQ(Nibble({"job", "kill", first}).exit_code, 0);
  const nlohmann::json active = Json({"job", "list", "--active"});
  ASSERT_EQ(active["jobs"].size(), 1u);
  EXPECT_EQ(active["jobs"][0]["id"], second);
  EXPECT_EQ(Json({"job", "list", "--state", "cancelled"})["jobs"][0]["id"], first);
  EXPECT_EQ(Json({"job", "list", "--queue", "none"})["jobs"].size(), 0u);
  EXPECT_EQ(Json({"job", "list", "--owner", "nobody at all"})["jobs"].size(), 0u);
  const Outcome one = Nibble({"job", "list", "--limit", "1"});
  EXPECT_THAT(one.out, Not(HasSubstr(first)));
  EXPECT_THAT(one.err, HasSubstr("--limit 0"));
  EXPECT_EQ(Json({"job", "list", "--limit", "0"})["jobs"].size(), 2u);
}

TEST_F(JobVerbsTest, AJobIsPausedResumedAndCheckpointedWithReasons) {
  const std::string job = cluster_.Submit();
  EXPECT_EQ(Nibble({"job", "checkpoint", job}).exit_code, 1);  // there is no attempt
  RunningWorker worker(cluster_);
  worker.Run();
  EXPECT_THAT(Out({"job", "checkpoint", job, "--reason", "before lunch"}),
              AllOf(HasSubstr("train-1 is running at 0/1000 (0%)"),
                    HasSubstr("\na checkpoint is requested at the next step boundary")));
  const Outcome paused = Nibble({"job", "pause", job, "--reason", "lunch"});
  EXPECT_EQ(paused.exit_code, 0) << paused.err;
  EXPECT_THAT(paused.out, HasSubstr("to be paused at a step boundary"));
  worker.ReportPhase(v1::RANK_PHASE_PAUSED, 7);
  EXPECT_THAT(Nibble({"job", "resume", job}).out,
              HasSubstr("train-1 is paused at 7/1000 (0%), to be resumed: "));
  EXPECT_EQ(Json({"job", "describe", job})["job"]["goal"], "JOB_GOAL_RUN");
  EXPECT_THAT(Err(1, {"job", "resume", job}), HasSubstr("nibble job resume: "));
  const Outcome events = Nibble({"job", "events", job});
  EXPECT_THAT(events.out, AllOf(HasSubstr("EVENT"), HasSubstr("lunch"), HasSubstr("before lunch"),
                                HasSubstr("queued → starting")));
  const nlohmann::json all = Json({"job", "events", job});
  const nlohmann::json later = Json({"job", "events", job, "--after", "2", "--limit", "1"});
  ASSERT_EQ(later["events"].size(), 1u);
  EXPECT_EQ(later["events"][0], all["events"][2]);
}

TEST_F(JobVerbsTest, PriorityAndRestartPolicyChangeAndUnsetOptionsKeepTheirValues) {
  const std::string job = cluster_.Submit();
  EXPECT_EQ(Json({"job", "priority", job, "9"})["scheduling"]["priority"], 9);
  EXPECT_EQ(Json({"job", "priority", job, "-9"})["scheduling"]["priority"], -9);
  EXPECT_THAT(Nibble({"job", "priority", job, "4"}).out,
              HasSubstr("priority 4 in queue default\n"));
  EXPECT_THAT(Nibble({"job", "priority", job, "1001"}).err, HasSubstr("priority: 1001"));
  nlohmann::json policy = Json({"job", "describe", job})["job"]["restart_policy"];
  policy["max_without_progress"] = 0;
  EXPECT_EQ(Json({"job", "restart-policy", job, "--max-restarts", "0"})["restart_policy"], policy);
  EXPECT_THAT(Nibble({"job", "restart-policy", job, "--max-restarts", "5"}).out,
              HasSubstr("restarts 0 of 5 without a new checkpoint"));
  EXPECT_THAT(Nibble({"job", "restart-policy", job}).err, HasSubstr("restart_policy: nothing"));
  EXPECT_THAT(Err(2, {"job", "restart-policy", job, "--backoff", "soon"}),
              HasSubstr("--backoff: 'soon'"));
}

TEST_F(JobVerbsTest, TheExitCodeOfAWaitTellsHowTheJobEnded) {
  EXPECT_EQ(Nibble({"job", "wait", "train-1"}).exit_code, 102);
  const std::string killed = cluster_.Submit("killed");
  const Outcome early = Nibble({"job", "wait", killed, "--timeout", "500ms"});
  EXPECT_EQ(early.exit_code, 101);
  EXPECT_THAT(early.out, HasSubstr("killed-1 is queued"));
  auto waiting = RemoteCluster::Later({"job", "wait", killed});
  v1::KillJobRequest kill;
  kill.set_job(killed);
  ASSERT_EQ(cluster_.coordinator().Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  EXPECT_EQ(waiting.get().exit_code, 103);

  const std::string done = cluster_.Submit("done");
  RunningWorker worker(cluster_);
  worker.Run();
  EXPECT_EQ(Nibble({"job", "wait", done, "--for", "running"}).exit_code, 0);
  worker.ReportPhase(v1::RANK_PHASE_SUCCEEDED, 1000);
  EXPECT_THAT(Out({"job", "wait", done}), HasSubstr("done-2 has succeeded at "));
  EXPECT_THAT(Err(103, {"job", "wait", killed, "--for", "running"}),
              HasSubstr("nibble job wait: "));
}

TEST_F(JobVerbsTest, AFailedJobGivesTheWaitItsExitCode) {
  const Outcome submitted =
      Nibble({"job", "submit", RemoteCluster::SpecFile("bad"), "--max-restarts", "0"});
  RunningWorker worker(cluster_);
  worker.Run();
  worker.ReportPhase(v1::RANK_PHASE_FAILED, 3, "rank 1: out of memory");
  cluster_.coordinator().Tick();
  const Outcome failed = Nibble({"job", "wait", "bad-1", "--timeout", "30s"});
  EXPECT_EQ(failed.exit_code, 100) << failed.out;
  EXPECT_THAT(failed.out, HasSubstr("bad-1 has failed at "));
  EXPECT_THAT(Nibble({"job", "describe", "bad-1"}).out, HasSubstr("out of memory"));
}

TEST_F(JobVerbsTest, CancelStopsAfterACheckpointAndKillAtOnce) {
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_);
  worker.Run();
  EXPECT_THAT(Out({"job", "cancel", job, "--grace", "90s", "--reason", "no use"}),
              HasSubstr("to be cancelled after a last checkpoint"));
  EXPECT_THAT(Nibble({"job", "cancel", job, "--grace", "x"}).err, HasSubstr("--grace: 'x'"));
  EXPECT_EQ(Json({"job", "kill", job})["state"], "JOB_STATE_CANCELLED");
  EXPECT_THAT(Err(1, {"job", "kill", job}), HasSubstr("nibble job kill: "));
  const std::string queued = cluster_.Submit("other");
  EXPECT_EQ(Nibble({"job", "cancel", queued, "--wait"}).exit_code, 0);
}

TEST_F(JobVerbsTest, AForkStartsFromACheckpointUnderAChangedRecipe) {
  const std::string job = cluster_.Submit();
  EXPECT_EQ(Nibble({"job", "fork", job}).exit_code, 102);  // there is no checkpoint
  RunningWorker worker(cluster_);
  worker.Run();
  worker.Obey(100);
  worker.Store(100);
  const nlohmann::json forked =
      Json({"job", "fork", job, "--at-step", "100", "--set", "fprop=bf16", "--layer",
            "last 2 blocks:wgrad=bf16", "--name", "branch", "--reason", "to compare", "--priority",
            "2", "--min-slots", "1"});
  EXPECT_EQ(forked["id"], "branch-2");
  EXPECT_EQ(forked["origin"]["checkpoint"]["step"], 100);
  EXPECT_EQ(forked["scheduling"]["priority"], 2);
  EXPECT_EQ(forked["scheduling"]["allowed_ranks"], nlohmann::json::parse("[1, 2, 4, 8, 16]"));
  EXPECT_EQ(forked["latest_revision"], 2);
  // From the newest checkpoint, with a name of its own.
  EXPECT_EQ(Nibble({"job", "fork", job, "--set", "dgrad=bf16"}).out, "train-fork1-3\n");
  EXPECT_THAT(Err(1, {"job", "fork", job, "--set", "fprop=bf61"}), HasSubstr("fprop"));
  EXPECT_EQ(Nibble({"job", "fork", job, "--at-step", "77"}).exit_code, 102);
}

TEST_F(JobVerbsTest, AForkNamesTheRevisionsOfItsParentThatItDoesNotCopy) {
  const std::string job = cluster_.Submit();
  for (const char* change : {"fprop=bf16", "dgrad=bf16"}) {
    // The first one is superseded: it is not named.
    ASSERT_EQ(Nibble({"recipe", "set", job, change, "--at", "step:800"}).exit_code, 0);
  }
  RunningWorker worker(cluster_);
  worker.Run();
  worker.Obey(100);
  worker.Store(100);
  const std::vector<std::string> fork = {"job", "fork", job, "--set", "wgrad=bf16"};
  const auto with = [&fork](const std::string& option) {
    std::vector<std::string> words = fork;
    words.push_back(option);
    return words;
  };
  const std::string dropped =
      "not copied from train-1: revision 3 from step 800 (nvfp4, fprop=bf16, dgrad=bf16); "
      "--with-pending copies revisions of later steps";
  const Outcome dry = Nibble(with("--dry-run"));
  EXPECT_THAT(dry.err, HasSubstr(dropped));
  EXPECT_THAT(dry.err, Not(HasSubstr("revision 2")));
  const Outcome forked = Nibble(fork);
  EXPECT_EQ(forked.out, "train-fork1-2\n");
  EXPECT_THAT(forked.err, HasSubstr(dropped));
  const Outcome whole = Nibble(with("--with-pending"));
  EXPECT_EQ(whole.out, "train-fork2-3\n");
  EXPECT_THAT(whole.err, Not(HasSubstr("not copied")));
  EXPECT_THAT(Err(1, {"job", "fork", job, "--with-pending"}),
              HasSubstr("would repeat train-1 from step 100 bit for bit"));
}

TEST_F(JobVerbsTest, APresetIsSetBySubmitAndFork) {
  const std::string job =
      Out({"job", "submit", RemoteCluster::SpecFile(), "--set", "preset=mxfp4"});
  EXPECT_EQ(Json({"recipe", "get", "train"})["revision"]["recipe"]["preset"], "mxfp4");
  RunningWorker worker(cluster_);
  worker.Run();
  worker.Obey(100);
  worker.Store(100);
  EXPECT_EQ(Out({"job", "fork", "train", "--set", "preset=mxfp8"}), "train-fork1-2\n");
  const nlohmann::json forked = Json({"recipe", "get", "train-fork1", "--revision", "2"});
  EXPECT_EQ(forked["revision"]["recipe"]["preset"], "mxfp8");
  EXPECT_THAT(Err(1, {"job", "fork", "train-1", "--set", "preset=mxfp9"}),
              HasSubstr("preset: 'mxfp9' is not known; nearest: 'mxfp"));
}

TEST_F(JobVerbsTest, AJobWithInitialWeightsNamesTheirOrigin) {
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_);
  worker.Run();
  worker.Obey(100);
  worker.Store(100);
  const std::string path = testing::TempDir() + "tuned.yaml";
  std::ofstream(path, std::ios::binary)
      << TestCoordinator::Spec("tuned", 1) << "init_from: {job: train}\n";
  EXPECT_THAT(Out({"job", "submit", path, "--dry-run"}),
              AllOf(HasSubstr("weights from"), HasSubstr(job + "@100")));
  EXPECT_EQ(Nibble({"job", "submit", path}).out, "tuned-2\n");
  EXPECT_THAT(Nibble({"job", "describe", "tuned-2"}).out,
              AllOf(HasSubstr("weights from"), HasSubstr(job + "@100"), HasSubstr("0/1000 (0%)")));
  EXPECT_THAT(Nibble({"job", "list", "--wide"}).out,
              AllOf(HasSubstr("FROM"), HasSubstr(job + "@100")));
  const nlohmann::json json = Json({"job", "describe", "tuned-2"});
  EXPECT_EQ(json["job"]["origin"]["weights_only"], true);
  EXPECT_THAT(Err(102, {"job", "submit", path, "--set", "init_from.job=nobody"}),
              HasSubstr("init_from.job: 'nobody' is not a job"));
}

TEST_F(JobVerbsTest, LossesOfJobsAreComparedAtCommonSteps) {
  const std::string a = cluster_.Submit("a", 1);
  const std::string b = cluster_.Submit("b", 1);
  EXPECT_EQ(Nibble({"job", "compare", a, b}).exit_code, 102);
  RunningWorker worker(cluster_);
  worker.Run();
  ASSERT_EQ(worker.report.gangs_size(), 2);
  worker.ReportSteps(0, {5.0, 4.5, 4.0});
  EXPECT_THAT(Out({"job", "compare", a, b}),
              AllOf(HasSubstr("Δ b-2"), HasSubstr("4.0000  4.0000  +0.0000")));
  const nlohmann::json json = Json({"job", "compare", a, b});
  EXPECT_EQ(json["steps"][1]["losses"], nlohmann::json::parse("[4.5, 4.5]"));
  EXPECT_EQ(Out({"job", "compare", a, b, "-o", "csv"}),
            "step,a-1,b-2,percent:b-2\n0,5,5,0\n1,4.5,4.5,0\n2,4,4,0\n");
}

TEST_F(JobVerbsTest, AReportOfAJobWhoseEventLogIsUnreachableHasTheCoordinatorsSamples) {
  const std::string a = cluster_.Submit("a", 1);
  const std::string b = cluster_.Submit("b", 1);
  RunningWorker worker(cluster_);
  worker.Run();
  worker.ReportSteps(0, {5.0, 4.5, 4.0});
  const std::string path = testing::TempDir() + "report.html";
  const Outcome made = Nibble({"job", "report", a, "--compare", b, "-o", path, "--timeout", "1"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr("wrote " + path), HasSubstr("3 steps, 0 precision")));
  EXPECT_THAT(made.err,
              AllOf(HasSubstr("the event log of worker w1, which ran rank 0 in attempt 1, "
                              "could not be read: "),
                    HasSubstr(". Its steps are the coordinator's samples")));
  std::ifstream file(path);
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(page, AllOf(HasSubstr("\"loss\":[[0,1,2],[5,4.5,4]]"), HasSubstr("</html>")));
  EXPECT_THAT(Err(1, {"job", "report", a, "--compare", a, "--timeout", "1"}),
              HasSubstr("which is in the report"));
  EXPECT_EQ(Nibble({"job", "report", "nobody"}).exit_code, 102);
}

class RecipeVerbsTest : public RemoteClusterTest {
 protected:
  const std::string job_ = cluster_.Submit();
};

TEST_F(RecipeVerbsTest, ARecipeIsSetReadAndListedInTheHistory) {
  EXPECT_THAT(
      Out({"recipe", "set", job_, "fprop=bf16", "--at", "lr-decay", "--reason", "to recover"}),
      AllOf(HasSubstr("revision 2 of train-1 from step 800\n"),
            HasSubstr("  fprop: nvfp4 → bf16 in "),
            HasSubstr("\ntrain-1 is queued at 0/1000 (0%)")));
  const nlohmann::json first = Json({"recipe", "get", job_});
  EXPECT_EQ(first["revision"]["number"], 1);
  EXPECT_EQ(first["latest_revision"], 2);
  const Outcome second = Nibble({"recipe", "get", job_, "--revision", "2", "--table"});
  EXPECT_THAT(second.out,
              AllOf(HasSubstr("revision      2; the latest is 2"), HasSubstr("fprop=bf16"),
                    HasSubstr("reason        to recover"), HasSubstr("wgrad.gradient")));
  const Outcome history = Nibble({"recipe", "history", job_});
  EXPECT_THAT(history.out, AllOf(HasSubstr("REVISION"), HasSubstr("800"), HasSubstr("to recover")));
  const nlohmann::json all = Json({"recipe", "history", job_});
  ASSERT_EQ(all["revisions"].size(), 2u);
  EXPECT_EQ(all["revisions"][1]["first_step"], 800);
}

TEST_F(RecipeVerbsTest, LayersAndFieldsAreSetTogether) {
  const nlohmann::json set = Json({"recipe", "set", job_, "wgrad=bf16", "--layer",
                                   "last 2 blocks:fprop=bf16,dgrad=bf16", "--at", "step:100"});
  EXPECT_EQ(set["revision"], 2);
  EXPECT_EQ(set["first_step"], 100);
  const nlohmann::json got = Json({"recipe", "get", job_, "--revision", "2"});
  EXPECT_EQ(got["revision"]["recipe"]["layers"][0]["match"], "last 2 blocks");
}

TEST_F(RecipeVerbsTest, ADryRunChangesNothing) {
  const Outcome dry = Nibble({"recipe", "set", job_, "fprop=bf16", "--dry-run"});
  EXPECT_EQ(dry.exit_code, 0);
  EXPECT_THAT(dry.out, HasSubstr("revision 2 of train-1"));
  EXPECT_THAT(dry.err, HasSubstr("nothing was changed"));
  EXPECT_EQ(Json({"recipe", "get", job_})["latest_revision"], 1);
}

TEST_F(RecipeVerbsTest, ErrorsNameTheirField) {
  const auto err = [this](std::vector<std::string> more) {
    more.insert(more.begin(), {"recipe", "set", job_});
    return Err(1, more);
  };
  EXPECT_THAT(err({"fpropp=bf16"}), HasSubstr("fpropp"));
  EXPECT_THAT(err({"fprop"}), HasSubstr("set: "));
  EXPECT_THAT(err({}), HasSubstr("set: nothing to change"));
  EXPECT_THAT(err({"--layer", "fprop"}), HasSubstr("layer: 'fprop'"));
  EXPECT_THAT(err({"fprop=bf16", "--at", "step:5000"}), HasSubstr("at: "));
  EXPECT_THAT(err({"fprop=bf16", "--expected-revision", "9"}), HasSubstr("expected_revision"));
  EXPECT_EQ(Nibble({"recipe", "set", "none", "fprop=bf16"}).exit_code, 102);
  EXPECT_EQ(Nibble({"recipe", "get", job_, "--revision", "9"}).exit_code, 102);
}

TEST_F(RecipeVerbsTest, RollbackReturnsToAnEarlierRecipe) {
  ASSERT_EQ(Nibble({"recipe", "set", job_, "fprop=bf16", "--at", "step:10"}).exit_code, 0);
  EXPECT_THAT(
      Out({"recipe", "rollback", job_, "1", "--at", "step:20", "--reason", "it was better"}),
      AllOf(HasSubstr("revision 3 of train-1 from step 20"),
            HasSubstr("the recipe of revision 1")));
  EXPECT_EQ(Nibble({"recipe", "rollback", job_, "7"}).exit_code, 102);
  EXPECT_EQ(Nibble({"recipe", "rollback", job_, "1", "--expected-revision", "2"}).exit_code, 1);
  EXPECT_EQ(Json({"recipe", "rollback", job_, "2", "--dry-run"})["revision"], 4);
}

TEST_F(RecipeVerbsTest, DiffComparesRevisionsOfAJobOrPresetsForAModel) {
  ASSERT_EQ(Nibble({"recipe", "set", job_, "fprop=bf16", "--at", "step:10"}).exit_code, 0);
  ASSERT_EQ(Nibble({"recipe", "set", job_, "wgrad=bf16", "--at", "step:20"}).exit_code, 0);
  EXPECT_THAT(Out({"recipe", "diff", job_}), AllOf(HasSubstr("fprop: "), HasSubstr("wgrad: ")));
  const Outcome some = Nibble({"recipe", "diff", job_, "2", "r3"});
  EXPECT_THAT(some.out, AllOf(Not(HasSubstr("fprop: ")), HasSubstr("wgrad: ")));
  EXPECT_EQ(Json({"recipe", "diff", job_, "1", "2"})["differences"][0]["to"], "bf16");
  EXPECT_THAT(Err(1, {"recipe", "diff", job_, "bf16"}), HasSubstr("from_revision: 'bf16'"));
  EXPECT_THAT(Out({"recipe", "diff", "nvfp4", "bf16", "--model", "tiny-hybrid"}),
              HasSubstr("→ bf16"));
  EXPECT_EQ(Nibble({"recipe", "diff", "nvfp4", "--model", "tiny-hybrid"}).exit_code, 2);
  EXPECT_EQ(Nibble({"recipe", "diff", job_, "--set", "fprop=bf16"}).exit_code, 2);
}

TEST_F(RecipeVerbsTest, CostIsThatOfAJobOrOfAPresetForAModel) {
  const Outcome cost = Nibble({"recipe", "cost", job_});
  EXPECT_EQ(cost.exit_code, 0) << cost.err;
  EXPECT_THAT(cost.out, AllOf(HasSubstr("IN 16 BIT"), HasSubstr("total")));
  const double now = Json({"recipe", "cost", job_})["cost"]["total_ratio"];
  const double changed =
      Json({"recipe", "cost", job_, "--revision", "1", "--set", "all=bf16"})["cost"]["total_ratio"];
  EXPECT_LT(now, changed);
  EXPECT_NEAR(changed, 1, 1e-9);
  EXPECT_THAT(Nibble({"recipe", "cost", "nvfp4", "--model", "tiny-hybrid"}).out,
              HasSubstr("16 bit"));
  EXPECT_EQ(Nibble({"recipe", "cost", job_, "--sequence", "128"}).exit_code, 2);
}

TEST_F(RecipeVerbsTest, WithAServerPresetsAreTheCoordinators) {
  const nlohmann::json here = Json({"recipe", "presets"});
  const nlohmann::json there = Json({"recipe", "presets", "--server", cluster_.address()});
  EXPECT_EQ(here, there["presets"]);
  EXPECT_THAT(Nibble({"recipe", "presets", "--server", cluster_.address()}).out,
              HasSubstr("nvfp4 "));
}

}  // namespace

}  // namespace nibble
