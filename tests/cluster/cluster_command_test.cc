// `nibble cluster up`, `down` and `status` as a user runs them.
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cluster/cluster_files.h"
#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr int kNotFound = 102;

class ClusterCommand : public testing::Test {
 protected:
  ClusterCommand() {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    fs::create_directories(root_ + "/tmp");
    WriteCorpus(root_ + "/corpus.txt", 40);
  }
  ~ClusterCommand() override {
    EXPECT_EQ(Cluster("down --grace 1").code, 0);
    fs::remove_all(root_);
  }
  // The output includes standard error.
  ShellResult Cluster(const std::string& arguments) const {
    const ClusterPrograms programs = TestPrograms();
    const std::string flags =
        !arguments.starts_with("up")
            ? ""
            : absl::StrCat(" --coordinator-program ", programs.coordinator, " --worker-program ",
                           programs.worker, " --trainer-program ", programs.trainer);
    return Shell(absl::StrCat("TMPDIR=", root_, "/tmp NIBBLE_HOME=", root_, " ", NibbleProgram(),
                              " cluster ", arguments, flags, " 2>&1"));
  }
  ClusterRecord Record() const {
    const auto record = ReadClusterRecord({root_ + "/cluster"});
    EXPECT_TRUE(record.ok()) << record.status();
    return record.ok() ? *record : ClusterRecord();
  }
  std::string Address() const {
    const auto address = ReadClusterAddress(root_ + "/cluster");
    EXPECT_TRUE(address.ok()) << address.status();
    return address.ok() ? *address : "";
  }

  std::string root_ = "/tmp/nibble-up-XXXXXX";
};

TEST_F(ClusterCommand, UpPrintsTheAddressAndASecondUpThatItWasAlreadyUp) {
  const ShellResult up = Cluster("up --workers 2 --slots 2");
  ASSERT_EQ(up.code, 0) << up.text;
  EXPECT_THAT(up.text, HasSubstr(Address()));
  EXPECT_THAT(up.text, HasSubstr("nibble cluster down"));
  const ClusterRecord before = Record();
  const ShellResult again = Cluster("up");
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.text, HasSubstr("was already up"));
  for (const auto& [role, process] : before.processes) {
    EXPECT_EQ(Record().processes.at(role).identity, process.identity) << role;
  }
  const json status = Cluster("status -o json").json();
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status.at("address"), Address());
  ASSERT_EQ(status.at("processes").size(), 3u);
  EXPECT_EQ(status["processes"][2].at("present"), true);
  EXPECT_EQ(status["processes"][2].at("slots"), 2);
  EXPECT_THAT(Cluster("status").text, HasSubstr("jobs         none"));
  // Workers are added; running ones stay unchanged.
  EXPECT_EQ(Cluster("up --workers 3").code, 0);
  EXPECT_EQ(Record().processes.size(), 4u);
  const ShellResult other = Cluster("up --slots 1");
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.text, HasSubstr("run 'nibble cluster down' first"));
}

TEST_F(ClusterCommand, UpStartsOnlyTheMissingProcesses) {
  ASSERT_EQ(Cluster("up").code, 0);
  const ClusterRecord before = Record();
  for (const char* const role : {"worker-2", "coordinator"}) {
    SignalProcess(before.processes.at(role).identity, SIGKILL);
    ASSERT_TRUE(AwaitAnyEnd({before.processes.at(role).identity}, kPatience));
  }
  EXPECT_THAT(Cluster("status").text, HasSubstr("does not run"));
  const ShellResult up = Cluster("up");
  ASSERT_EQ(up.code, 0) << up.text;
  EXPECT_THAT(up.text, HasSubstr("starting coordinator"));
  EXPECT_THAT(up.text, HasSubstr("starting worker-2"));
  EXPECT_THAT(up.text, Not(HasSubstr("starting worker-1")));
  EXPECT_EQ(Record().processes.at("worker-1").identity, before.processes.at("worker-1").identity);
  EXPECT_EQ(Cluster("status -o json").json()["processes"][1].at("present"), true);
}

TEST_F(ClusterCommand, DownEndsAllRanksAndTheNextUpResumesTheJobs) {
  ASSERT_EQ(Cluster("up --workers 1").code, 0);
  v1::SubmitJobRequest request;
  request.set_request_id("request-1");
  request.set_spec_yaml(TinyJob{.steps = 2000, .every = 100'000}.Yaml(root_ + "/corpus.txt"));
  v1::SubmitJobResponse submitted;
  const absl::Status accepted = CoordinatorStub(Address()).Call(
      kSubmitJob, request, &submitted,
      {.waits_for_ready = true, .deadline = std::chrono::system_clock::now() + kPatience});
  ASSERT_TRUE(accepted.ok()) << accepted;
  const std::string job = submitted.job().id();
  int64_t rank = 0;
  {
    JobWatch watch(Address());
    ASSERT_TRUE(watch.AwaitStep(job, 20, kPatience));
    for (const auto& entry : fs::directory_iterator(root_ + "/cluster/worker-1/processes")) {
      std::ifstream file(entry.path());
      rank = json::parse(file).at("pid");
    }
  }
  const auto process = IdentifyProcess(static_cast<pid_t>(rank));
  ASSERT_TRUE(process.ok()) << process.status();
  const ShellResult down = Cluster("down");
  ASSERT_EQ(down.code, 0) << down.text;
  EXPECT_FALSE(IsAlive(*process));
  EXPECT_FALSE(Record().AnyAlive());
  EXPECT_FALSE(fs::exists(root_ + "/cluster/address"));
  EXPECT_EQ(Cluster("down").code, 0);
  EXPECT_THAT(Cluster("status").text, HasSubstr("not up"));

  ASSERT_EQ(Cluster("up").code, 0);
  JobWatch watch(Address());
  EXPECT_TRUE(watch.AwaitState(job, v1::JOB_STATE_SUCCEEDED, kPatience));
  // It resumed from a checkpoint: no failure, and no step was made twice.
  const v1::Job finished = watch.Of(job).job;
  EXPECT_EQ(finished.attempts(), 2) << finished.DebugString();
  EXPECT_EQ(finished.recent_attempts(0).outcome(), v1::ATTEMPT_OUTCOME_STOPPED);
  const auto log = ReadEvents(absl::StrCat(root_, "/cluster/worker-1/jobs/", job, "/events.jsonl"));
  EXPECT_EQ(EventsOf(log, "step").size(), 2000u);
  EXPECT_EQ(Cluster("down --purge").code, 0);
  EXPECT_FALSE(fs::exists(root_ + "/cluster"));
}

TEST_F(ClusterCommand, WorkersOfALargerClusterStayDrainedUntilItIsThatLargeAgain) {
  const auto modes = [this] {
    std::map<std::string, v1::WorkerMode> modes;
    v1::ListWorkersResponse all;
    const absl::Status listed = CoordinatorStub(Address()).Call(
        kListWorkers, v1::ListWorkersRequest(), &all,
        {.waits_for_ready = true, .deadline = std::chrono::system_clock::now() + kPatience});
    EXPECT_TRUE(listed.ok()) << listed;
    for (const v1::Worker& worker : all.workers()) modes[worker.identity().name()] = worker.mode();
    return modes;
  };
  const auto is = [](v1::WorkerMode first, v1::WorkerMode second) {
    return testing::ElementsAre(testing::Pair("worker-1", first),
                                testing::Pair("worker-2", second));
  };
  ASSERT_EQ(Cluster("up --workers 2").code, 0);
  ASSERT_EQ(Cluster("down").code, 0);
  ASSERT_EQ(Cluster("up --workers 1").code, 0);
  EXPECT_THAT(modes(), is(v1::WORKER_MODE_OPEN, v1::WORKER_MODE_DRAINING));
  ASSERT_EQ(Cluster("up --workers 2").code, 0);
  EXPECT_THAT(modes(), is(v1::WORKER_MODE_OPEN, v1::WORKER_MODE_OPEN));
  // A cluster that was killed has drained nothing.
  const ClusterRecord killed = Record();
  for (const auto& [role, process] : killed.processes) {
    SignalProcess(process.identity, SIGKILL);
    ASSERT_TRUE(AwaitAnyEnd({process.identity}, kPatience));
  }
  ASSERT_EQ(Cluster("up --workers 1").code, 0);
  EXPECT_THAT(modes(), is(v1::WORKER_MODE_OPEN, v1::WORKER_MODE_DRAINING));
  EXPECT_EQ(Cluster("down --purge").code, 0);
}

TEST_F(ClusterCommand, AProcessThatDiesIsNamedWithTheEndOfItsLog) {
  const ShellResult up = Cluster("up --coordinator-flag=--no-such-flag");
  EXPECT_EQ(up.code, 1);
  EXPECT_THAT(up.text, HasSubstr("coordinator has ended"));
  EXPECT_THAT(up.text, HasSubstr("--no-such-flag"));
}

TEST_F(ClusterCommand, WithoutAClusterStatusFailsAndDownSucceeds) {
  EXPECT_EQ(Cluster("status").code, kNotFound);
  EXPECT_EQ(Cluster("down").code, 0);
  EXPECT_FALSE(fs::exists(root_ + "/cluster"));
}

}  // namespace
}  // namespace nibble
