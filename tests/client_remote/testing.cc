#include "tests/client_remote/testing.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/remote/remote_commands.h"
#include "client/shell/nouns.h"
#include "common/command_line/command_line.h"
#include "common/process/spawn.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

// As client/main.cc does, but only nouns that call a coordinator, without checkpoint.
void AddCommands(Command app, int& exit_code) {
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

std::string RemoteClusterTest::Out(const std::vector<std::string>& arguments) const {
  const Outcome outcome = Nibble(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.out;
}

std::string RemoteClusterTest::Err(int exit_code, const std::vector<std::string>& arguments) const {
  const Outcome outcome = Nibble(arguments);
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.out << outcome.err;
  return outcome.err;
}

nlohmann::json RemoteClusterTest::Json(std::vector<std::string> arguments) const {
  arguments.insert(arguments.end(), {"-o", "json"});
  const std::string out = Out(arguments);
  nlohmann::json json = nlohmann::json::parse(out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << out;
  return json;
}

void RunningWorker::Run(int64_t step) {
  ASSERT_EQ(Report(), absl::OkStatus());
  cluster_.coordinator().Tick();
  Obey(step);
}

void RunningWorker::ReportSteps(int64_t first, const std::vector<double>& losses) {
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

void RunningWorker::ReportPhase(v1::RankPhase phase, int64_t step, const std::string& detail) {
  for (v1::GangReport& gang : *report.mutable_gangs()) {
    gang.set_phase(phase);
    gang.set_next_step(step);
    gang.set_detail(detail);
  }
  ASSERT_EQ(Report(), absl::OkStatus());
}

namespace {

constexpr int kSilenceMs = 60'000;

// The end to read from, and the end that a process writes to.
std::array<int, 2> MakeTerminal() {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  EXPECT_GE(terminal, 0);
  EXPECT_EQ(grantpt(terminal), 0);
  EXPECT_EQ(unlockpt(terminal), 0);
  return {terminal, open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC)};
}

std::array<int, 2> MakePipe() {
  std::array<int, 2> ends = {-1, -1};
  EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  return ends;
}

}  // namespace

Outcome NibbleProcess::Run(const std::vector<std::string>& arguments) {
  NibbleProcess process(arguments);
  Outcome outcome;
  // Neither stream fills its pipe while the other is read.
  while (process.More(0)) {
  }
  while (process.More(1)) {
  }
  outcome.out = process.read_[0];
  outcome.err = process.read_[1];
  outcome.exit_code = process.Wait();
  return outcome;
}

std::unique_ptr<NibbleProcess> NibbleProcess::OnTerminal(
    const std::vector<std::string>& arguments) {
  std::unique_ptr<NibbleProcess> process(new NibbleProcess);
  process->Start(arguments, true);
  return process;
}

void NibbleProcess::Start(const std::vector<std::string>& arguments, bool terminal) {
  const auto [from_out, out] = terminal ? MakeTerminal() : MakePipe();
  const auto [from_err, err] = MakePipe();
  pipes_ = {from_out, from_err};
  if (terminal) Resize(80, 24);
  SpawnOptions options = {.arguments = {kNibbleProgram},
                          .input = terminal ? out : SpawnOptions::kNull,
                          .output = out,
                          .error = err};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  const absl::StatusOr<pid_t> child = SpawnProcess(options);
  EXPECT_EQ(child.status(), absl::OkStatus());
  child_ = child.value_or(-1);
  close(out);
  close(err);
}

NibbleProcess::~NibbleProcess() {
  if (child_ > 0) {
    Signal(SIGKILL);
    Wait();
  }
  for (const int pipe : pipes_) close(pipe);
}

bool NibbleProcess::More(size_t stream) {
  pollfd ready = {.fd = pipes_[stream], .events = POLLIN, .revents = 0};
  if (poll(&ready, 1, kSilenceMs) == 0) {
    ADD_FAILURE() << "no output for " << kSilenceMs << " ms";
    return false;
  }
  std::array<char, 4096> bytes;
  const ssize_t got = read(pipes_[stream], bytes.data(), bytes.size());
  if (got <= 0) return false;
  read_[stream].append(bytes.data(), static_cast<size_t>(got));
  return true;
}

std::string NibbleProcess::Line(size_t stream) {
  std::string& read_so_far = read_[stream];
  size_t end = read_so_far.find('\n');
  while (end == std::string::npos) {
    if (!More(stream)) return "";
    end = read_so_far.find('\n');
  }
  std::string line = read_so_far.substr(0, end);
  read_so_far.erase(0, end + 1);
  return line;
}

void NibbleProcess::Resize(int columns, int rows) {
  struct winsize size = {};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = static_cast<unsigned short>(rows);
  EXPECT_EQ(ioctl(pipes_[0], TIOCSWINSZ, &size), 0);
}

void NibbleProcess::Type(const std::string& keys) {
  EXPECT_EQ(write(pipes_[0], keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

bool NibbleProcess::HasUsualMode() const {
  struct termios mode = {};
  EXPECT_EQ(tcgetattr(pipes_[0], &mode), 0);
  return (mode.c_lflag & ICANON) != 0 && (mode.c_lflag & ECHO) != 0;
}

void NibbleProcess::Signal(int signal) {
  // kill(-1) would signal every process.
  ASSERT_GT(child_, 0) << "the process was not started, or has ended";
  kill(child_, signal);
}

int NibbleProcess::Wait() {
  int status = 0;
  if (child_ <= 0 || waitpid(child_, &status, 0) != child_) return -1;
  child_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace nibble
