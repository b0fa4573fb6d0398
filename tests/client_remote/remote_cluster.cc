#include "tests/client_remote/remote_cluster.h"

#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/local/job_command.h"
#include "client/remote/completion.h"
#include "client/remote/remote_commands.h"

namespace nibble {
namespace {

// As client/main.cc does, for nouns that speak to a cluster; not that of checkpoints.
void AddCommands(CLI::App& app, int& exit_code) {
  AddJobCommand(app, exit_code);
  AddRemoteCommands(app, exit_code);
  AddCompletionCommand(app, exit_code);
}

}  // namespace

RemoteCluster::RemoteCluster() : coordinator_(std::make_unique<TestCoordinator>()) {
  Start();
  setenv("NIBBLE_HOME", testing::TempDir().c_str(), 1);
  setenv("NIBBLE_SERVER", address().c_str(), 1);
}

RemoteCluster::~RemoteCluster() { server_.reset(); }

std::string RemoteCluster::address() const { return absl::StrCat("127.0.0.1:", port_); }

void RemoteCluster::Stop() {
  server_.reset();
  coordinator_->Restart();
}

void RemoteCluster::Start() {
  auto server = CoordinatorServer::Start(coordinator_->controller(),
                                         {.listen = absl::StrCat("127.0.0.1:", port_)});
  ASSERT_EQ(server.status(), absl::OkStatus());
  server_ = *std::move(server);
  port_ = server_->port();
}

Outcome RemoteCluster::Nibble(const std::vector<std::string>& arguments) {
  return RunCommand(AddCommands, arguments);
}

std::future<Outcome> RemoteCluster::Later(std::vector<std::string> arguments) {
  return std::async(std::launch::async,
                    [arguments = std::move(arguments)] { return Nibble(arguments); });
}

nlohmann::json RemoteCluster::Json(std::vector<std::string> arguments,
                                   Outcome (*nibble)(const std::vector<std::string>&)) {
  arguments.insert(arguments.end(), {"-o", "json"});
  const Outcome outcome = nibble(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  nlohmann::json json = nlohmann::json::parse(outcome.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << outcome.out;
  return json;
}

std::string RemoteCluster::SpecFile(const std::string& name, int ranks, const std::string& more) {
  std::string path = absl::StrCat(testing::TempDir(), name, "_spec.yaml");
  std::ofstream(path, std::ios::binary) << TestCoordinator::Spec(name, ranks, more);
  return path;
}

std::string RemoteCluster::Submit(const std::string& name, int ranks) {
  const Outcome submitted = Nibble({"job", "submit", SpecFile(name, ranks)});
  EXPECT_EQ(submitted.exit_code, 0) << submitted.err;
  return submitted.out.substr(0, submitted.out.find('\n'));
}

void RunningWorker::Run(int64_t step) {
  ASSERT_EQ(Report(), absl::OkStatus());
  cluster_.coordinator().Tick();
  Obey(step);
}

void RunningWorker::Tell(int64_t first, const std::vector<double>& losses) {
  for (v1::GangReport& gang : *report.mutable_gangs()) {
    gang.set_next_step(first + static_cast<int64_t>(losses.size()));
    for (size_t i = 0; i < losses.size(); ++i) {
      v1::StepSample& sample = *gang.add_samples();
      sample.set_step(first + static_cast<int64_t>(i));
      sample.set_loss(losses[i]);
      sample.set_tokens_per_second(1000);
      sample.set_step_seconds(1);
      sample.set_revision(1);
      sample.set_updated(true);
    }
  }
  ASSERT_EQ(Report(), absl::OkStatus());
  for (v1::GangReport& gang : *report.mutable_gangs()) gang.clear_samples();
}

void RunningWorker::Move(v1::RankPhase phase, int64_t step, const std::string& detail) {
  for (v1::GangReport& gang : *report.mutable_gangs()) {
    gang.set_phase(phase);
    gang.set_next_step(step);
    gang.set_detail(detail);
  }
  ASSERT_EQ(Report(), absl::OkStatus());
}

}  // namespace nibble
