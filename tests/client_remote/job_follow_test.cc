// Following a job: watches and waits, on a pipe and on a terminal.
#include <signal.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client_remote/testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class JobFollowTest : public RemoteClusterTest {
 protected:
  // The environment of a program on a terminal.
  static void SetTerminal(const char* locale, bool colours) {
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", locale, 1);
    setenv("NO_COLOR", colours ? "" : "1", 1);
  }

  // The next line with this text.
  static std::string AwaitLine(NibbleProcess& watch, const std::string& text) {
    std::string line;
    do line = watch.OutLine();
    while (!line.empty() && line.find(text) == std::string::npos);
    return line;
  }

  void SetPriority(const std::string& job, int priority) {
    v1::SetJobPriorityRequest request;
    request.set_job(job);
    request.set_priority(priority);
    ASSERT_EQ(cluster_.coordinator().Do<v1::SetJobPriorityResponse>(request).status(),
              absl::OkStatus());
  }

  void Kill(const std::string& job) {
    v1::KillJobRequest request;
    request.set_job(job);
    ASSERT_EQ(cluster_.coordinator().Do<v1::KillJobResponse>(request).status(), absl::OkStatus());
  }

  // Reads the output of a watch with -o json until an element has this key.
  static nlohmann::json Await(NibbleProcess& watch, const std::string& key) {
    while (true) {
      const std::string line = watch.OutLine();
      const nlohmann::json element = nlohmann::json::parse(line, nullptr, false);
      if (element.is_discarded()) {
        ADD_FAILURE() << "the watch ended before " << key << ": " << line;
        return {};
      }
      if (element.contains(key)) return element;
    }
  }
};

TEST_F(JobFollowTest, OnAPipeAWatchPrintsPlainLinesAndExitsAsTheJobEnds) {
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_);
  worker.Run();
  worker.ReportSteps(0, {5.0, 4.5});
  auto watching = RemoteCluster::Later({"job", "watch", job});
  worker.ReportPhase(v1::RANK_PHASE_SUCCEEDED, 1000);
  const Outcome watched = watching.get();
  EXPECT_EQ(watched.exit_code, 0) << watched.err;
  EXPECT_THAT(watched.out, StartsWith("train-1 "));
  EXPECT_THAT(watched.out, HasSubstr("\nstep 2/1000 (0%)  loss 4.5000"));
  EXPECT_THAT(watched.out, HasSubstr("\ntrain-1 has succeeded"));
  EXPECT_THAT(watched.out, Not(HasSubstr("\x1b")));
}

TEST_F(JobFollowTest, AWatchOfAFinishedJobEndsAtOnce) {
  const std::string job = cluster_.Submit();
  Kill(job);
  const Outcome watched = Nibble({"job", "watch", job});
  EXPECT_EQ(watched.exit_code, 103);
  EXPECT_THAT(watched.out, EndsWith("train-1 is cancelled at 0/1000 (0%): killed\n"));
  const Outcome yaml = Nibble({"job", "watch", job, "-o", "yaml"});
  EXPECT_EQ(yaml.exit_code, 103);
  EXPECT_THAT(yaml.out, AllOf(StartsWith("---\n"), HasSubstr("\n  state: JOB_STATE_CANCELLED\n")));
  EXPECT_EQ(Nibble({"job", "watch", "none"}).exit_code, 102);
}

TEST_F(JobFollowTest, EventsArePrintedAsTheyHappen) {
  const std::string job = cluster_.Submit();
  NibbleProcess watch({"job", "watch", job, "-o", "json"});
  Await(watch, "caught_up");
  SetPriority(job, 7);
  EXPECT_EQ(Await(watch, "event")["event"]["kind"], "JOB_EVENT_KIND_SETTING");
  EXPECT_EQ(Await(watch, "job")["job"]["scheduling"]["priority"], 7);
  Kill(job);
  EXPECT_EQ(Await(watch, "job")["job"]["state"], "JOB_STATE_CANCELLED");
  EXPECT_EQ(watch.OutLine(), "");
  EXPECT_EQ(watch.Wait(), 103);
}

TEST_F(JobFollowTest, AWatchOutlivesTheCoordinatorAndMissesNothing) {
  const std::string job = cluster_.Submit();
  NibbleProcess watch({"job", "watch", job, "-o", "json"});
  Await(watch, "caught_up");
  cluster_.Stop();
  SetPriority(job, 3);  // while nobody can watch
  EXPECT_THAT(watch.ErrLine(), HasSubstr("does not answer; the watch continues when it does"));
  cluster_.Start();
  EXPECT_THAT(watch.ErrLine(), HasSubstr("is back"));
  EXPECT_EQ(Await(watch, "event")["event"]["kind"], "JOB_EVENT_KIND_SETTING");
  Await(watch, "caught_up");
  Kill(job);
  EXPECT_EQ(watch.Wait(), 103);
  EXPECT_EQ(watch.ErrLine(), "");
}

TEST_F(JobFollowTest, CtrlCDetachesAndTheJobKeepsRunning) {
  const std::string job = cluster_.Submit();
  NibbleProcess watch({"job", "watch", job, "-o", "json"});
  Await(watch, "caught_up");
  watch.Signal(SIGINT);
  EXPECT_THAT(watch.ErrLine(), HasSubstr("Run 'nibble job watch train-1' to follow it again"));
  EXPECT_EQ(watch.Wait(), 101);
  EXPECT_EQ(cluster_.coordinator().Job(job).state(), v1::JOB_STATE_QUEUED);
}

TEST_F(JobFollowTest, CtrlCDetachesWhileTheCoordinatorIsDown) {
  const std::string job = cluster_.Submit();
  NibbleProcess watch({"job", "watch", job, "-o", "json"});
  Await(watch, "caught_up");
  cluster_.Stop();
  EXPECT_THAT(watch.ErrLine(), HasSubstr("does not answer"));
  watch.Signal(SIGINT);
  EXPECT_THAT(watch.ErrLine(), HasSubstr("to follow it again"));
  EXPECT_EQ(watch.Wait(), 101);
  cluster_.Start();
}

TEST_F(JobFollowTest, OnATerminalAWatchIsRedrawnInPlaceAtAnySize) {
  SetTerminal("C.UTF-8", /*colours=*/false);
  const std::string job = cluster_.Submit();
  cluster_.coordinator().Tick();
  const auto watch = NibbleProcess::OnTerminal({"job", "watch", job});
  const auto await = [&watch](const std::string& text) { return AwaitLine(*watch, text); };
  EXPECT_THAT(await("train-1  queued"), HasSubstr("queue default"));
  EXPECT_THAT(await("0/1000"), HasSubstr("[>   "));
  EXPECT_THAT(await("why "), HasSubstr("needs 2 slots"));
  EXPECT_THAT(await("recipe "), HasSubstr("r1  nvfp4"));
  watch->Resize(30, 24);
  // The cursor goes up, and the view no longer fits on a line.
  EXPECT_THAT(await("train-1  queued"), HasSubstr("\x1b[J\r\x1b["));
  // A reason is wrapped, never cut off.
  EXPECT_THAT(await("why "), StartsWith("why       needs 2 slots"));
  EXPECT_THAT(watch->OutLine(), AllOf(StartsWith("          "), Not(HasSubstr("…"))));
  Kill(job);
  EXPECT_THAT(await("train-1  cancelled"), HasSubstr("\x1b["));
  EXPECT_EQ(watch->Wait(), 103);
}

TEST_F(JobFollowTest, OnATerminalAWatchPlotsTheStepsBeforeItAndObeysKeys) {
  SetTerminal("C.UTF-8", /*colours=*/false);
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_);
  worker.Run();
  worker.ReportSteps(0, std::vector<double>(200, 4.5));
  const auto watch = NibbleProcess::OnTerminal({"job", "watch", job});
  EXPECT_THAT(AwaitLine(*watch, "loss      4.5000"), HasSubstr("gradient"));
  EXPECT_THAT(AwaitLine(*watch, "\u2524"), HasSubstr("4."));  // a tick of the y axis
  EXPECT_THAT(AwaitLine(*watch, "step "), HasSubstr("150"));
  EXPECT_THAT(AwaitLine(*watch, "timeline "), HasSubstr("r1 nvfp4"));
  EXPECT_FALSE(watch->HasUsualMode());
  watch->Type("t");
  EXPECT_THAT(AwaitLine(*watch, "tokens "), HasSubstr("100k"));
  watch->Type("?");
  AwaitLine(*watch, "  q  detach; the job keeps running");
  watch->Type("q");
  EXPECT_THAT(watch->ErrLine(), HasSubstr("detached; the job keeps running"));
  EXPECT_EQ(watch->Wait(), 101);
  EXPECT_TRUE(watch->HasUsualMode());
  EXPECT_EQ(cluster_.coordinator().Job(job).state(), v1::JOB_STATE_RUNNING);
}

TEST_F(JobFollowTest, CtrlCOnATerminalRestoresItsMode) {
  SetTerminal("C.UTF-8", /*colours=*/false);
  const std::string job = cluster_.Submit();
  const auto watch = NibbleProcess::OnTerminal({"job", "watch", job});
  AwaitLine(*watch, "train-1  queued");
  EXPECT_FALSE(watch->HasUsualMode());
  watch->Signal(SIGINT);
  EXPECT_EQ(watch->Wait(), 101);
  EXPECT_TRUE(watch->HasUsualMode());
}

TEST_F(JobFollowTest, WithoutUtf8AWatchIsAsciiAndColoursAreOnlyForThoseWhoWantThem) {
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_);
  worker.Run();
  worker.ReportSteps(0, std::vector<double>(50, 4.5));
  for (const bool colours : {false, true}) {
    SetTerminal("C", colours);
    const auto watch = NibbleProcess::OnTerminal({"job", "watch", job});
    std::string view;
    for (std::string line; line.find("attempt ") == std::string::npos;) {
      line = watch->OutLine();
      ASSERT_FALSE(line.empty());
      view += line;
    }
    for (const char byte : view) ASSERT_LT(static_cast<unsigned char>(byte), 0x80) << view;
    EXPECT_EQ(view.find("\x1b[32m") != std::string::npos, colours);
  }
}

TEST_F(JobFollowTest, AReferenceIsComparedWithAlsoOnAPipe) {
  const std::string base = cluster_.Submit("base");
  RunningWorker first(cluster_);
  first.Run();
  first.ReportSteps(0, {5.0, 4.0});
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_, "w2");
  worker.Run();
  worker.ReportSteps(0, {5.0, 4.4});
  auto watching = RemoteCluster::Later({"job", "watch", job, "--reference", "base"});
  worker.ReportPhase(v1::RANK_PHASE_SUCCEEDED, 1000);
  const Outcome watched = watching.get();
  EXPECT_EQ(watched.exit_code, 0) << watched.err;
  EXPECT_THAT(watched.out, HasSubstr("  +10.00% from base-1\n"));
  EXPECT_THAT(Err(1, {"job", "watch", job, "--reference", "base", "-o", "json"}),
              HasSubstr("reference: is for people"));
  EXPECT_EQ(Nibble({"job", "watch", job, "--reference", "none"}).exit_code, 102);
}

TEST_F(JobFollowTest, SubmitAndWatchEndsWithTheJobsExitCode) {
  NibbleProcess submit({"job", "submit", RemoteCluster::SpecFile(), "--watch"});
  EXPECT_EQ(submit.OutLine(), "train-1");
  EXPECT_THAT(submit.OutLine(), StartsWith("train-1 is queued"));
  Kill("train-1");
  EXPECT_EQ(submit.Wait(), 103);
}

TEST_F(JobFollowTest, AWaitOutlivesTheCoordinatorAndCanBeDetached) {
  const std::string job = cluster_.Submit();
  NibbleProcess wait({"job", "wait", job});
  EXPECT_THAT(wait.ErrLine(), HasSubstr("waiting for train-1"));
  cluster_.Stop();
  EXPECT_THAT(wait.ErrLine(), HasSubstr("does not answer"));
  cluster_.Start();
  wait.Signal(SIGINT);
  EXPECT_THAT(wait.ErrLine(), HasSubstr("Run 'nibble job wait train-1' to wait again"));
  EXPECT_EQ(wait.Wait(), 101);
}

TEST_F(JobFollowTest, AWaitForAStepEndsWhenTheStepIsComplete) {
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_);
  worker.Run();
  auto waiting = RemoteCluster::Later({"job", "wait", job, "--step", "3", "--timeout", "60s"});
  worker.ReportSteps(0, {5.0, 4.5, 4.0});
  const Outcome waited = waiting.get();
  EXPECT_EQ(waited.exit_code, 0) << waited.err;
  EXPECT_THAT(waited.out, HasSubstr("train-1 is running"));
  Kill(job);
  EXPECT_EQ(Nibble({"job", "wait", job, "--step", "900"}).exit_code, 103);
}

TEST_F(JobFollowTest, AWaitForAStepOutlivesTheCoordinatorAndEndsWithTheJobsState) {
  const std::string job = cluster_.Submit();
  NibbleProcess wait({"job", "wait", job, "--step", "3"});
  EXPECT_THAT(wait.ErrLine(), HasSubstr("waiting for step 3 of train-1"));
  cluster_.Stop();
  EXPECT_THAT(wait.ErrLine(), HasSubstr("does not answer"));
  cluster_.Start();
  wait.Signal(SIGINT);
  EXPECT_THAT(wait.ErrLine(), HasSubstr("Run 'nibble job wait train-1 --step 3' to wait again"));
  EXPECT_THAT(wait.OutLine(), StartsWith("train-1 is queued"));
  EXPECT_EQ(wait.Wait(), 101);
}

}  // namespace
}  // namespace nibble
