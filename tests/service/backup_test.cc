// The coordinator's program with settings files and backups: a backup taken under a load of
// submissions contains every job that was acknowledged before it was requested.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/exposition_testing.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "server/controller/testing.h"
#include "tests/processes/processes.h"
#include "tests/service/coordinator_process.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class CoordinatorBackupTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "backup_XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override {
    coordinator_.reset();
    fs::remove_all(root_);
  }

  void Serve(const std::string& store, const std::vector<std::string>& flags) {
    auto started = CoordinatorProcess::Start({.program = CoordinatorProgram(),
                                              .store = root_ + "/" + store,
                                              .flags = flags,
                                              .http = "127.0.0.1:0"});
    ASSERT_EQ(started.status(), absl::OkStatus());
    coordinator_ = *std::move(started);
    stub_ = v1::Coordinator::NewStub(coordinator_->Connect());
  }
  // The id of the acknowledged job; empty if the call failed.
  std::string Submit(int number) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::SubmitJobRequest request;
    request.set_request_id(absl::StrCat("request-", number));
    request.set_spec_yaml(TestCoordinator::Spec(absl::StrCat("load-", number % 7), 1));
    v1::SubmitJobResponse response;
    return stub_->SubmitJob(&context, request, &response).ok() ? response.job().id() : "";
  }
  bool Knows(const std::string& job) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::DescribeJobRequest request;
    request.set_job(job);
    v1::DescribeJobResponse response;
    return stub_->DescribeJob(&context, request, &response).ok();
  }
  ShellResult Backup(const std::string& words) {
    return Shell(absl::StrCat(CoordinatorProgram(), " backup ", words, " 2>&1"));
  }
  double Metric(const std::string& series) {
    return Exposition::Parse(HttpGet(coordinator_->http_port(), "/metrics").value())
        .value()
        .Value(series);
  }

  std::string root_;
  std::unique_ptr<CoordinatorProcess> coordinator_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

TEST_F(CoordinatorBackupTest, NothingAcknowledgedBeforeABackupUnderLoadIsLost) {
  const std::string backups = root_ + "/backups";
  Serve("store", {"--backup-directory", backups, "--backup-every", "0"});
  Mutex mutex;
  std::vector<std::string> acknowledged;
  std::atomic<int> number = 0;
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&] {
      // Ends when the coordinator is killed.
      for (std::string job; !(job = Submit(++number)).empty();) {
        MutexLock lock(&mutex);
        acknowledged.push_back(job);
      }
    });
  }
  const auto known = [&] {
    MutexLock lock(&mutex);
    return acknowledged;
  };
  std::vector<std::string> before;
  for (const size_t jobs : {20, 60, 100}) {
    // No ASSERT while the clients run.
    EXPECT_TRUE(Eventually([&] { return known().size() >= jobs; }));
    before = known();
    const ShellResult made = Backup(absl::StrCat("now ", backups));
    EXPECT_EQ(made.code, 0) << made.text << coordinator_->OutputText();
  }
  EXPECT_EQ(Metric("nibble_backups_total{result=\"made\"}"), 3);
  EXPECT_GT(Metric("nibble_backup_time_seconds"), 1.6e9);
  const size_t at_end = known().size();
  EXPECT_TRUE(Eventually([&] { return known().size() > at_end; }));
  coordinator_->Kill();
  for (std::thread& client : clients) client.join();
  fs::remove_all(root_ + "/store");

  const ShellResult checked = Backup(absl::StrCat("check ", backups));
  EXPECT_EQ(checked.code, 0) << checked.text;
  const ShellResult restored =
      Backup(absl::StrCat("restore ", backups, " --store ", root_, "/elsewhere"));
  ASSERT_EQ(restored.code, 0) << restored.text;
  Serve("elsewhere", {});
  for (const std::string& job : before) EXPECT_TRUE(Knows(job)) << job << " is lost";
  EXPECT_THAT(coordinator_->OutputText(), HasSubstr("epoch 2 of the store begins ("));
  // Only the first start after the restore begins an epoch.
  EXPECT_EQ(coordinator_->End(), 0);
  Serve("elsewhere", {});
  EXPECT_THAT(coordinator_->OutputText(), Not(HasSubstr("begins")));
  EXPECT_FALSE(Submit(1'000'000).empty());
}

TEST_F(CoordinatorBackupTest, PeriodicBackupsBeginAtTheStartAndAFailureIsCountedNotFatal) {
  const std::string backups = root_ + "/backups";
  std::ofstream(backups) << "not a directory";
  Serve("store", {"--backup-directory", backups, "--backup-every", "0.01"});
  ASSERT_TRUE(Eventually([&] { return Metric("nibble_backups_total{result=\"failed\"}") >= 1; }));
  EXPECT_FALSE(Submit(1).empty());
  EXPECT_THAT(coordinator_->OutputText(), HasSubstr("no backup: "));
  fs::remove(backups);
  ASSERT_TRUE(Eventually([&] { return Metric("nibble_backups_total{result=\"made\"}") >= 2; }));
}

TEST_F(CoordinatorBackupTest, ASettingsFileConfiguresTheProgramAndItsMistakesStopIt) {
  const std::string file = root_ + "/coordinator.yaml";
  std::ofstream(file) << "lease-ms: 5000\ncopies: 3\nbackup-directory: " << root_
                      << "/backups\nbackup-every: 0\n";
  Serve("store", {"--config", file});
  const ShellResult made = Backup(absl::StrCat("now ", root_, "/backups"));
  EXPECT_EQ(made.code, 0) << made.text;
  const std::string command = absl::StrCat(CoordinatorProgram(), " --store ", root_,
                                           "/other --cluster test --config ", file);
  const ShellResult printed = Shell(command + " --copies 4 --print-config");
  EXPECT_EQ(printed.code, 0);
  EXPECT_THAT(printed.text, HasSubstr("\nlease-ms: 5000\n"));
  EXPECT_THAT(printed.text, HasSubstr("\ncopies: 4\n"));
  EXPECT_FALSE(fs::exists(root_ + "/other"));
  std::ofstream(file) << "lease: 5000\ncopies: 99\n";
  const ShellResult refused = Shell(command + " 2>&1");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.text, HasSubstr("line 1: lease: unknown setting, did you mean lease-ms?"));
  EXPECT_THAT(refused.text, HasSubstr("line 2: copies: '99'; allowed: whole numbers, 1 to 16"));
}

}  // namespace
}  // namespace nibble
