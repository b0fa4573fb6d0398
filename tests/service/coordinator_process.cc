#include "tests/service/coordinator_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errno_error.h"
#include "common/mutex.h"
#include "common/process/spawn.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace nibble {

// Reads the standard error of the process until its end.
class CoordinatorProcess::Output {
 public:
  explicit Output(int fd) : fd_(fd), thread_([this] { Read(); }) {}
  ~Output() {
    thread_.join();
    (void)close(fd_);
  }

  // The port; 0 if the process ended or `patience` passed before it printed one.
  int WaitForPort(std::chrono::seconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    MutexLock lock(&mutex_);
    while (!over_ && PortLocked() == 0) {
      if (changed_.WaitUntil(&mutex_, deadline)) break;
    }
    return PortLocked();
  }
  int port() const {
    MutexLock lock(&mutex_);
    return PortLocked();
  }
  int http_port() const {
    MutexLock lock(&mutex_);
    return NumberLocked("metrics at http://127.0.0.1:", '\n');
  }
  std::string text() const {
    MutexLock lock(&mutex_);
    return text_;
  }

 private:
  static constexpr size_t kMaxText = 1 << 20;

  int PortLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return NumberLocked(" on port ", ',');
  }
  // The number between `before` and `after`; 0 if it was not printed yet.
  int NumberLocked(absl::string_view before, char after) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t at = text_.find(before.data(), 0, before.size());
    const size_t end = at == std::string::npos ? at : text_.find(after, at);
    int number = 0;
    if (end == std::string::npos) return 0;
    const size_t from = at + before.size();
    return absl::SimpleAtoi(text_.substr(from, end - from), &number) ? number : 0;
  }

  void Read() {
    char buffer[4096];
    for (;;) {
      const ssize_t count = read(fd_, buffer, sizeof(buffer));
      if (count < 0 && errno == EINTR) continue;
      MutexLock lock(&mutex_);
      if (count <= 0) over_ = true;
      if (count > 0 && text_.size() < kMaxText) {
        text_.append(buffer, static_cast<size_t>(count));
      }
      changed_.SignalAll();
      if (over_) return;
    }
  }

  const int fd_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the members above
};

absl::StatusOr<std::unique_ptr<CoordinatorProcess>> CoordinatorProcess::Start(
    const Options& options) {
  std::vector<std::string> arguments = {options.program, "--store", options.store,
                                        "--cluster",     "test",    "--listen",
                                        "127.0.0.1:0",   "--http",  options.http};
  arguments.insert(arguments.end(), options.flags.begin(), options.flags.end());
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoError(errno, "making a pipe");
  const absl::StatusOr<pid_t> pid =
      SpawnProcess({.arguments = std::move(arguments), .error = pipe_fds[1]});
  (void)close(pipe_fds[1]);
  if (!pid.ok()) {
    (void)close(pipe_fds[0]);
    return pid.status();
  }
  std::unique_ptr<CoordinatorProcess> process(
      new CoordinatorProcess(*pid, std::make_unique<Output>(pipe_fds[0])));
  if (process->output_->WaitForPort(options.patience) > 0) return process;
  const bool lived = process->Lives();
  process->Kill();
  const std::string message = absl::StrCat(
      options.program, lived ? " does not listen: " : " has ended: ", process->OutputText());
  return lived ? absl::DeadlineExceededError(message) : absl::InternalError(message);
}

CoordinatorProcess::CoordinatorProcess(pid_t pid, std::unique_ptr<Output> output)
    : pid_(pid), output_(std::move(output)) {}

CoordinatorProcess::~CoordinatorProcess() { Kill(); }

int CoordinatorProcess::port() const { return output_->port(); }
int CoordinatorProcess::http_port() const { return output_->http_port(); }
std::string CoordinatorProcess::address() const { return absl::StrCat("127.0.0.1:", port()); }
std::string CoordinatorProcess::OutputText() const { return output_->text(); }

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
  std::ifstream in(absl::StrCat("/proc/", pid_, "/stat"));
  std::stringstream text;
  text << in.rdbuf();
  // After the name, which ends with the last ')': user and system time are the 12th and 13th.
  const std::string stat = text.str();
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

std::string CoordinatorProgram() {
  const std::string program = "server/nibble-coordinator";
  return std::filesystem::exists(program) ? program : "bazel-bin/" + program;
}

}  // namespace nibble
