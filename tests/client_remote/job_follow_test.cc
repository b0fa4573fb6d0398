// Following a job, and retries while the coordinator is away.
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "proto/nibble/v1/rank_log.grpc.pb.h"
#include "tests/client_remote/testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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

// A run that made step 1 twice; a trace of its two ranks.
const std::vector<const char*> kEventLines = {
    R"({"schema":1,"event":"start","time":"2026-01-31T12:00:00.000Z","first_step":0,"spec":"name: a"})",
    R"({"schema":1,"event":"step","time":"2026-01-31T12:00:01.000Z","step":0,"loss":5.5})",
    R"({"schema":1,"event":"step","time":"2026-01-31T12:00:02.000Z","step":1,"loss":5.25})",
    R"({"schema":1,"event":"start","time":"2026-01-31T12:00:03.000Z","first_step":1,"spec":"name: a"})",
    R"({"schema":1,"event":"step","time":"2026-01-31T12:00:04.000Z","step":1,"loss":"nan"})",
    R"({"schema":1,"event":"step","time":"2026-01-31T12:00:05.000Z","step":2,"loss":5})"};
const std::vector<const char*> kTraceLines = {
    "[", R"({"ph":"M","name":"process_name","pid":0,"args":{"name":"rank 0"}},)",
    R"({"ph":"X","name":"step 7","pid":0,"tid":1,"ts":1,"dur":2},)",
    R"({"ph":"M","name":"process_name","pid":1,"args":{"name":"rank 1"}})", "]"};

// A daemon with fixed logs.
class Daemon : public v1::RankLogs::Service {
 public:
  Daemon() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Daemon() override { server_->Shutdown(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status ReadRankLog(grpc::ServerContext*, const v1::ReadRankLogRequest* request,
                           grpc::ServerWriter<v1::ReadRankLogResponse>* writer) override {
    v1::ReadRankLogResponse response;
    if (request->events() || request->trace_steps() > 0) {
      for (const char* line : request->events() ? kEventLines : kTraceLines) {
        response.add_lines(line);
      }
      writer->Write(response);
      return grpc::Status::OK;
    }
    const int first = request->tail_lines() > 0 ? 3 - request->tail_lines() : 0;
    for (int i = first; i < 3; ++i) {
      response.add_lines(absl::StrCat("line ", i, " of rank ", request->rank()));
    }
    writer->Write(response);
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(JobFollowTest, LogsAreThoseOfTheRequestedRanks) {
  Daemon daemon;
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_);
  worker.report.mutable_identity()->set_address(daemon.address());
  worker.Run();
  EXPECT_EQ(Out({"job", "logs", job, "--rank", "1", "--tail", "2"}),
            "line 1 of rank 1\nline 2 of rank 1\n");
  EXPECT_THAT(Out({"job", "logs", job}),
              AllOf(HasSubstr("[0] line 0 of rank 0\n"), HasSubstr("[1] line 2 of rank 1\n")));
  const Outcome json = Nibble({"job", "logs", job, "--rank", "0", "-o", "json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["lines"][2], "line 2 of rank 0");
  EXPECT_THAT(Err(102, {"job", "logs", job, "--attempt", "9"}), HasSubstr("attempt"));
  EXPECT_EQ(Nibble({"job", "logs", job, "--rank", "-1"}).exit_code, 2);
}

TEST_F(JobFollowTest, MetricsAreTheLastFiguresOfEachStepInEveryForm) {
  Daemon daemon;
  const std::string job = cluster_.Submit();
  EXPECT_THAT(Err(102, {"job", "metrics", job}), HasSubstr("attempt"));
  RunningWorker worker(cluster_);
  worker.report.mutable_identity()->set_address(daemon.address());
  worker.Run();
  const std::string csv = Out({"job", "metrics", job, "--from-step", "1"});
  EXPECT_THAT(csv, StartsWith("time,step,tokens,loss,"));
  EXPECT_THAT(csv, HasSubstr("\n2026-01-31T12:00:04.000Z,1,,nan,,"));
  EXPECT_THAT(csv, HasSubstr("\n2026-01-31T12:00:05.000Z,2,,5,,"));
  EXPECT_THAT(csv, Not(AnyOf(HasSubstr("5.5"), HasSubstr("5.25"))));
  EXPECT_EQ(Out({"job", "metrics", job, "--every", "2", "-o", "json"}),
            "{\"time\":\"2026-01-31T12:00:01.000Z\",\"step\":0,\"loss\":5.5}\n"
            "{\"time\":\"2026-01-31T12:00:05.000Z\",\"step\":2,\"loss\":5}\n");
  const std::string logs = absl::StrCat(::testing::TempDir(), "/logs");
  EXPECT_THAT(Out({"job", "metrics", job, "--tensorboard", logs}),
              AllOf(StartsWith(absl::StrCat(logs, "/", job, "/events.out.tfevents.")),
                    EndsWith(": 3 scalars\n")));
  EXPECT_THAT(Err(1, {"job", "metrics", job, "--from-step", "3", "--to-step", "2"}),
              HasSubstr("--to-step: 2 is below --from-step, 3"));
}

TEST_F(JobFollowTest, ATraceIsOneArrayOfTheEventsOfAllWorkers) {
  Daemon daemon;
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_);
  worker.report.mutable_identity()->set_address(daemon.address());
  worker.Run();
  const std::string path = absl::StrCat(::testing::TempDir(), "/trace.json");
  EXPECT_EQ(Out({"job", "trace", job, "--steps", "3", "-o", path}),
            absl::StrCat(path, ": 1 span of 2 ranks\n"));
  std::ifstream file(path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  ASSERT_EQ(trace.size(), 3u);
  EXPECT_EQ(trace[1]["name"], "step 7");
  EXPECT_EQ(Nibble({"job", "trace", job, "--steps", "101"}).exit_code, 2);
  Kill(job);
  EXPECT_THAT(Err(1, {"job", "trace", job, "-o", path}), HasSubstr("no running ranks"));
}

class RetryTest : public RemoteClusterTest {};

TEST_F(RetryTest, ACommandSucceedsWhenTheCoordinatorReturns) {
  const std::string spec = RemoteCluster::SpecFile();
  cluster_.Stop();
  NibbleProcess submit({"job", "submit", spec, "--timeout", "60s"});
  EXPECT_THAT(submit.ErrLine(), HasSubstr("does not answer; retrying for 1m"));
  cluster_.Start();
  EXPECT_EQ(submit.OutLine(), "train-1");
  EXPECT_EQ(submit.Wait(), 0);
  EXPECT_EQ(Json({"job", "list"})["jobs"].size(), 1u);
}

TEST_F(RetryTest, AnUnreachableCoordinatorIsNamedInTheError) {
  cluster_.Stop();
  const Outcome listed = Nibble({"job", "list", "--timeout", "200ms"});
  EXPECT_EQ(listed.exit_code, 1);
  EXPECT_THAT(listed.out, IsEmpty());
  EXPECT_THAT(listed.err, AllOf(HasSubstr("nibble job list: no answer from " + cluster_.address()),
                                HasSubstr("NIBBLE_SERVER")));
  cluster_.Start();
  setenv("NIBBLE_SERVER", "nonsense", 1);
  EXPECT_THAT(Nibble({"job", "list"}).err, HasSubstr("NIBBLE_SERVER: 'nonsense'"));
}

TEST_F(RetryTest, WithoutAClusterTheErrorIsImmediateAndNamesTheRemedy) {
  cluster_.Stop();
  const Outcome listed = Nibble({"job", "list"});
  EXPECT_EQ(listed.exit_code, 1);
  EXPECT_THAT(listed.out, IsEmpty());
  EXPECT_EQ(listed.err, "nibble job list: nothing listens at " + cluster_.address() +
                            ": run 'nibble cluster up' to start a cluster here, name another with "
                            "--server or NIBBLE_SERVER, or wait for one that is starting with "
                            "--timeout\n");
  cluster_.Start();
}

TEST_F(RetryTest, TheServerOptionMayStandBeforeTheVerb) {
  setenv("NIBBLE_SERVER", "127.0.0.1:1", 1);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--server", cluster_.address(), "job", "list"},
                                             {"job", "--server", cluster_.address(), "list"},
                                             {"job", "list", "--server", cluster_.address()}}) {
    const Outcome listed = NibbleProcess::Run(words);
    EXPECT_EQ(listed.exit_code, 0) << listed.err;
  }
}

// Applies every pause, but loses its first responses, and forgets tasks.
class ForgetfulCoordinator : public v1::Coordinator::Service {
 public:
  static constexpr int kLost = 2;

  ForgetfulCoordinator() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    setenv("NIBBLE_SERVER", absl::StrCat("127.0.0.1:", port).c_str(), 1);
  }
  ~ForgetfulCoordinator() override { server_->Shutdown(); }

  grpc::Status DescribeJob(grpc::ServerContext*, const v1::DescribeJobRequest* request,
                           v1::DescribeJobResponse* response) override {
    response->mutable_job()->set_id(request->job());
    return grpc::Status::OK;
  }

  grpc::Status PauseJob(grpc::ServerContext* context, const v1::PauseJobRequest* request,
                        v1::PauseJobResponse* response) override {
    const MutexLock lock(&mutex_);
    ids.push_back(request->request_id());
    const auto author = context->client_metadata().find("nibble-author");
    has_author = author != context->client_metadata().end() && !author->second.empty();
    if (ids.size() <= kLost) return {grpc::StatusCode::UNAVAILABLE, "stopping"};
    response->mutable_job()->set_id(request->job());
    return grpc::Status::OK;
  }

  grpc::Status VerifyCheckpoint(grpc::ServerContext*, const v1::VerifyCheckpointRequest* request,
                                v1::VerifyCheckpointResponse* response) override {
    *response->mutable_ref() = request->ref();
    response->set_task(1);
    return grpc::Status::OK;
  }

  // Stores only tasks after that one.
  grpc::Status DescribeCheckpoint(grpc::ServerContext*,
                                  const v1::DescribeCheckpointRequest* request,
                                  v1::DescribeCheckpointResponse* response) override {
    *response->mutable_checkpoint()->mutable_ref() = request->ref();
    response->mutable_checkpoint()->add_tasks()->set_number(2);
    return grpc::Status::OK;
  }

  // To be read while no call is running.
  std::vector<std::string> ids;
  bool has_author = false;

 private:
  Mutex mutex_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(RetryTest, RetriesOfAChangeShareARequestIdAndCommandsDoNot) {
  ForgetfulCoordinator coordinator;
  EXPECT_EQ(Nibble({"job", "pause", "train-1"}).exit_code, 0);
  ASSERT_EQ(coordinator.ids.size(), 3u);
  EXPECT_EQ(std::set<std::string>(coordinator.ids.begin(), coordinator.ids.end()).size(), 1u);
  EXPECT_EQ(coordinator.ids[0].size(), 32u);
  EXPECT_TRUE(coordinator.has_author);
  EXPECT_EQ(Nibble({"job", "pause", "train-1"}).exit_code, 0);
  EXPECT_NE(coordinator.ids[3], coordinator.ids[0]);
}

TEST_F(RetryTest, AWaitForATaskThatNewerOnesHaveReplacedEnds) {
  ForgetfulCoordinator coordinator;
  const Outcome verified = NibbleProcess::Run({"checkpoint", "verify", "train-1@100"});
  EXPECT_EQ(verified.exit_code, 102);
  EXPECT_THAT(verified.err, HasSubstr("task: 1 of train-1@100 has ended"));
}

}  // namespace

}  // namespace nibble
