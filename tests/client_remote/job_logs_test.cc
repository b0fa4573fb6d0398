// What the ranks of a job wrote: logs, metrics and traces, which the workers' daemons serve.
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/rank_log.grpc.pb.h"
#include "tests/client_remote/testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class JobLogsTest : public RemoteClusterTest {};

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

TEST_F(JobLogsTest, LogsAreThoseOfTheRequestedRanks) {
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

TEST_F(JobLogsTest, TheErrorOfAnAbsentWorkerDoesNotBlameTheCoordinator) {
  std::string address;
  {
    const Daemon daemon;
    address = daemon.address();
  }
  const std::string job = cluster_.Submit();
  RunningWorker worker(cluster_);
  worker.report.mutable_identity()->set_address(address);
  worker.Run();
  for (const char* verb : {"logs", "metrics"}) {
    EXPECT_THAT(Err(1, {"job", verb, job, "--timeout", "100ms"}),
                AllOf(HasSubstr(absl::StrCat("worker w1 (", address, ") does not answer")),
                      Not(HasSubstr("another coordinator")), Not(HasSubstr(cluster_.address()))));
  }
}

TEST_F(JobLogsTest, MetricsAreTheLastFiguresOfEachStepInEveryForm) {
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

// Jobs a and b of one worker, which has reported steps 0 to 2; the coordinator has been restarted
// since, which loses its samples.
class RestartedTest : public RemoteClusterTest {
 protected:
  void MakeSteps(const std::string& address, bool killed) {
    a_ = cluster_.Submit("a", 1);
    b_ = cluster_.Submit("b", 1);
    RunningWorker worker(cluster_);
    worker.report.mutable_identity()->set_address(address);
    worker.Run();
    worker.ReportSteps(0, {5.5, 5.25, 5});
    if (killed) {
      for (const std::string& job : {a_, b_}) Out({"job", "kill", job});
    } else {
      worker.ReportPhase(v1::RANK_PHASE_SUCCEEDED, 1000);
    }
    cluster_.Stop();
    cluster_.Start();
  }

  std::string a_, b_;
};

TEST_F(RestartedTest, LossesComeFromTheEventLogs) {
  Daemon daemon;
  MakeSteps(daemon.address(), /*killed=*/true);
  EXPECT_EQ(Out({"job", "compare", a_, b_, "-o", "csv"}),
            "step,a-1,b-2,percent:b-2\n0,5.5,5.5,0\n1,nan,nan,nan\n2,5,5,0\n");
  const Outcome watched = Nibble({"job", "watch", a_, "--reference", b_});
  EXPECT_EQ(watched.exit_code, 103) << watched.err;
  EXPECT_THAT(watched.err, Not(HasSubstr("missing")));
}

TEST_F(RestartedTest, StepsThatNoPlaceHasAreNamedWithTheWorkerThatIsAbsent) {
  MakeSteps("127.0.0.1:1", /*killed=*/false);
  // Every tenth step is logged, and the last one.
  const std::string missing =
      "a-1: the losses of 101 steps are missing, 0 to 999: the event log of worker w1, which ran "
      "rank 0 in attempt 1, could not be read: ";
  EXPECT_THAT(Err(102, {"job", "compare", a_, b_, "--timeout", "1"}),
              AllOf(HasSubstr("a-1 has no known losses"), HasSubstr(missing),
                    HasSubstr("b-2: the losses of 101 steps are missing")));
  const Outcome watched = Nibble({"job", "watch", b_, "--reference", a_, "--timeout", "1"});
  EXPECT_THAT(watched.err, HasSubstr(missing));
  const Outcome made =
      Nibble({"job", "report", a_, "--timeout", "1", "-o", ::testing::TempDir() + "absent.html"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("0 steps, 101 missing, 0 precision samples"));
  EXPECT_THAT(made.err, HasSubstr(missing));
}

TEST_F(RestartedTest, AKilledJobWhoseLogIsAbsentHasNoKnownLosses) {
  MakeSteps("127.0.0.1:1", /*killed=*/true);
  EXPECT_THAT(Err(102, {"job", "compare", a_, b_, "--timeout", "1"}),
              HasSubstr("a-1: no losses are known: the event log of worker w1"));
}

TEST_F(JobLogsTest, ATraceIsOneArrayOfTheEventsOfAllWorkers) {
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
  v1::KillJobRequest kill;
  kill.set_job(job);
  ASSERT_EQ(cluster_.coordinator().Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  EXPECT_THAT(Err(1, {"job", "trace", job, "-o", path}), HasSubstr("no running ranks"));
}

}  // namespace
}  // namespace nibble
