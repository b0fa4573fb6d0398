#include "tests/service/coordinator_process.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errno_error.h"
#include "common/process/process.h"
#include "common/process/spawn.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "tests/processes/processes.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<CoordinatorProcess>> CoordinatorProcess::Start(
    const Options& options) {
  std::vector<std::string> arguments = {options.program, "--store", options.store,
                                        "--cluster",     "test",    "--listen",
                                        "127.0.0.1:0",   "--http",  options.http};
  arguments.insert(arguments.end(), options.flags.begin(), options.flags.end());
  OwnedDescriptor output(memfd_create("output", MFD_CLOEXEC));
  if (output.get() < 0) return ErrnoError(errno, "making a file in memory");
  const absl::StatusOr<pid_t> pid =
      SpawnProcess({.arguments = std::move(arguments), .error = output.get()});
  if (!pid.ok()) return pid.status();
  std::unique_ptr<CoordinatorProcess> process(new CoordinatorProcess(*pid, std::move(output)));
  const auto deadline = std::chrono::steady_clock::now() + options.patience;
  const ProcessHandle handle(*pid);
  while (process->port() == 0 && std::chrono::steady_clock::now() < deadline) {
    if (handle.AwaitEnd(std::chrono::milliseconds(1))) break;
  }
  if (process->port() > 0) return process;
  const bool lived = process->Lives();
  process->Kill();
  const std::string message = absl::StrCat(
      options.program, lived ? " does not listen: " : " has ended: ", process->OutputText());
  return lived ? absl::DeadlineExceededError(message) : absl::InternalError(message);
}

CoordinatorProcess::CoordinatorProcess(pid_t pid, OwnedDescriptor output)
    : pid_(pid), output_(std::move(output)) {}

CoordinatorProcess::~CoordinatorProcess() { Kill(); }

std::string CoordinatorProcess::OutputText() const {
  return TextOf(absl::StrCat("/proc/self/fd/", output_.get()));
}

int CoordinatorProcess::PrintedNumber(absl::string_view before, char after) const {
  const std::string text = OutputText();
  const size_t at = text.find(before.data(), 0, before.size());
  const size_t end = at == std::string::npos ? at : text.find(after, at);
  int number = 0;
  if (end == std::string::npos) return 0;
  const size_t from = at + before.size();
  return absl::SimpleAtoi(text.substr(from, end - from), &number) ? number : 0;
}

int CoordinatorProcess::port() const { return PrintedNumber(" on port ", ','); }
int CoordinatorProcess::http_port() const {
  return PrintedNumber("metrics at http://127.0.0.1:", '\n');
}
std::string CoordinatorProcess::address() const { return absl::StrCat("127.0.0.1:", port()); }

std::shared_ptr<grpc::Channel> CoordinatorProcess::Connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
}

int CoordinatorProcess::Reap(int options) {
  int status = 0;
  if (exit_ < 0 && waitpid(pid_, &status, options) == pid_) {
    exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return exit_;
}

bool CoordinatorProcess::Lives() { return Reap(WNOHANG) < 0; }

int CoordinatorProcess::End() {
  if (exit_ < 0) (void)kill(pid_, SIGTERM);
  return Reap(0);
}

void CoordinatorProcess::Kill() {
  if (exit_ < 0) (void)kill(pid_, SIGKILL);
  (void)Reap(0);
}

int64_t CoordinatorProcess::RssBytes() const {
  std::ifstream in(absl::StrCat("/proc/", pid_, "/statm"));
  int64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double CoordinatorProcess::CpuSeconds() const {
  // After the name, which ends with the last ')': user and system time are the 12th and 13th.
  const std::string stat = TextOf(absl::StrCat("/proc/", pid_, "/stat"));
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  const std::vector<std::string> fields =
      absl::StrSplit(stat.substr(name_end + 1), ' ', absl::SkipEmpty());
  int64_t user = 0, system = 0;
  if (fields.size() < 13 || !absl::SimpleAtoi(fields[11], &user) ||
      !absl::SimpleAtoi(fields[12], &system)) {
    return 0;
  }
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::string CoordinatorProgram() { return BuiltProgram("server/nibble-coordinator"); }

}  // namespace nibble
