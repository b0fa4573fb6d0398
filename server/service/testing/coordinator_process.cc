#include "server/service/testing/coordinator_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace nibble {

// Collects the standard error of the process until its end.
class CoordinatorProcess::Ear {
 public:
  explicit Ear(int fd) : fd_(fd), thread_([this] { Listen(); }) {}
  ~Ear() {
    thread_.join();
    (void)close(fd_);
  }

  // The port; 0 if the process ended or `patience` passed before it printed one.
  int WaitForPort(std::chrono::seconds patience) {
    std::unique_lock lock(mutex_);
    heard_.wait_for(lock, patience, [this] { return over_ || PortLocked() > 0; });
    return PortLocked();
  }
  int port() const {
    std::lock_guard lock(mutex_);
    return PortLocked();
  }
  int http_port() const {
    std::lock_guard lock(mutex_);
    return NumberLocked("metrics at http://127.0.0.1:", '\n');
  }
  std::string words() const {
    std::lock_guard lock(mutex_);
    return words_;
  }

 private:
  static constexpr size_t kMostWords = 1 << 20;

  int PortLocked() const { return NumberLocked(" on port ", ','); }
  // The number between `before` and `after`; 0 if it was not printed yet.
  int NumberLocked(absl::string_view before, char after) const {
    const size_t at = words_.find(before.data(), 0, before.size());
    const size_t end = at == std::string::npos ? at : words_.find(after, at);
    int number = 0;
    if (end == std::string::npos) return 0;
    const size_t from = at + before.size();
    return absl::SimpleAtoi(words_.substr(from, end - from), &number) ? number : 0;
  }

  void Listen() {
    char buffer[4096];
    for (;;) {
      const ssize_t count = read(fd_, buffer, sizeof(buffer));
      if (count < 0 && errno == EINTR) continue;
      std::lock_guard lock(mutex_);
      if (count <= 0) over_ = true;
      if (count > 0 && words_.size() < kMostWords) {
        words_.append(buffer, static_cast<size_t>(count));
      }
      heard_.notify_all();
      if (over_) return;
    }
  }

  const int fd_;
  mutable std::mutex mutex_;
  std::condition_variable heard_;
  // Guarded by mutex_.
  std::string words_;
  bool over_ = false;
  std::thread thread_;  // last: it uses the members above
};

absl::StatusOr<std::unique_ptr<CoordinatorProcess>> CoordinatorProcess::Start(
    const Options& options) {
  std::vector<std::string> words = {options.program, "--store", options.store,
                                    "--cluster",     "test",    "--listen",
                                    "127.0.0.1:0",   "--http",  options.http};
  words.insert(words.end(), options.flags.begin(), options.flags.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return absl::UnavailableError("no pipe");
  const pid_t pid = fork();
  if (pid < 0) return absl::UnavailableError("no process");
  if (pid == 0) {
    (void)dup2(pipe_fds[1], STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  (void)close(pipe_fds[1]);
  std::unique_ptr<CoordinatorProcess> process(
      new CoordinatorProcess(pid, std::make_unique<Ear>(pipe_fds[0])));
  if (process->ear_->WaitForPort(options.patience) > 0) return process;
  const bool lived = process->Lives();
  process->Kill();
  return absl::UnavailableError(absl::StrCat(
      options.program, lived ? " does not listen: " : " has ended: ", process->Words()));
}

CoordinatorProcess::CoordinatorProcess(pid_t pid, std::unique_ptr<Ear> ear)
    : pid_(pid), ear_(std::move(ear)) {}

CoordinatorProcess::~CoordinatorProcess() { Kill(); }

int CoordinatorProcess::port() const { return ear_->port(); }
int CoordinatorProcess::http_port() const { return ear_->http_port(); }
std::string CoordinatorProcess::address() const { return absl::StrCat("127.0.0.1:", port()); }
std::string CoordinatorProcess::Words() const { return ear_->words(); }

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
