#include "worker/agent/process_supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/process/process.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kReadBytes = 65536;
// After the process and its group have ended, only a descendant that left the group has the pipe.
constexpr int kLastWordsMs = 200;
constexpr auto kNever = SteadyClock::time_point::max();

absl::Status ExecError(const std::string& path, int error) {
  const std::string text =
      absl::StrCat("program: cannot execute '", path, "': ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::FailedPreconditionError(text);
}

// Runs between fork and exec, with one thread and with locks that other threads may have had: only
// async-signal-safe calls.
[[noreturn]] void BecomeProgram(pid_t daemon, int output, int go, int report,
                                char* const* arguments, char* const* environment) {
  (void)setpgid(0, 0);
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != daemon) _exit(127);
  sigset_t none;
  (void)sigemptyset(&none);
  (void)sigprocmask(SIG_SETMASK, &none, nullptr);
  (void)signal(SIGPIPE, SIG_DFL);
  const int null = open("/dev/null", O_RDONLY);
  (void)dup2(null, 0);
  (void)dup2(output, 1);
  (void)dup2(output, 2);
  char byte;
  // End of file without a byte: the process could not be recorded and must not run.
  if (read(go, &byte, 1) != 1) _exit(127);
  (void)execve(arguments[0], arguments, environment);
  const int error = errno;
  (void)!write(report, &error, sizeof error);
  _exit(127);
}

}  // namespace

struct ProcessSupervisor::Process {
  Program program;
  std::shared_ptr<RankLog> log;
  std::thread thread;
  int wake = -1;  // an eventfd: the deadline has changed
  int output = -1;
  int handle = -1;  // a pidfd
  std::promise<absl::Status> started;

  // Guarded by the supervisor's mutex_. `pid` is reaped only under it, so that a signal never goes
  // to another process.
  pid_t pid = 0;
  bool reaped = false;
  bool terminated = false;
  bool killed = false;
  SteadyClock::time_point kill_at = kNever;
  std::optional<ProcessExit> exit;

  ~Process() {
    for (const int file : {wake, output, handle}) {
      if (file >= 0) close(file);
    }
  }
};

int64_t OomKills() {
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    std::ifstream events(absl::StrCat("/sys/fs/cgroup", line.substr(3), "/memory.events"));
    while (std::getline(events, line)) {
      const std::vector<std::string> parts = absl::StrSplit(line, ' ');
      int64_t count = 0;
      if (parts.size() == 2 && parts[0] == "oom_kill" && absl::SimpleAtoi(parts[1], &count)) {
        return count;
      }
    }
  }
  return 0;
}

std::string Describe(const ProcessExit& exit) {
  std::string text = exit.signal != 0 ? absl::StrCat("was killed by signal ", exit.signal, " (",
                                                     strsignal(exit.signal), ")")
                                      : absl::StrCat("ended with exit code ", exit.exit_code);
  if (exit.out_of_memory) absl::StrAppend(&text, ": out of memory");
  if (exit.killed) absl::StrAppend(&text, ", by its daemon");
  return text;
}

ProcessSupervisor::ProcessSupervisor(Options options) : options_(std::move(options)) {}

ProcessSupervisor::~ProcessSupervisor() {
  std::vector<std::shared_ptr<Process>> all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [name, process] : processes_) all.push_back(process);
  }
  for (const auto& process : all) {
    (void)Kill(process->program.name);
    if (process->thread.joinable()) process->thread.join();
  }
}

absl::Status ProcessSupervisor::Start(const Program& program) {
  if (program.arguments.empty() || program.name.empty() ||
      program.name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("program: '", program.name, "' has no arguments, no name, or a slash in it"));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<RankLog> log,
                          RankLog::Create(program.log_path, program.log_limits));
  auto process = std::make_shared<Process>();
  process->program = program;
  process->log = std::move(log);
  process->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!processes_.emplace(program.name, process).second) {
      return absl::AlreadyExistsError(absl::StrCat("program: '", program.name, "' is there"));
    }
  }
  std::future<absl::Status> started = process->started.get_future();
  process->thread = std::thread([this, process] { Run(process); });
  absl::Status status = started.get();
  if (!status.ok()) {
    process->thread.join();
    const std::lock_guard<std::mutex> lock(mutex_);
    processes_.erase(program.name);
  }
  return status;
}

// The thread of one process. It forks, so that the kernel's death signal is bound to this thread.
void ProcessSupervisor::Run(const std::shared_ptr<Process>& process) {
  const Program& program = process->program;
  std::vector<std::string> argument_texts = program.arguments;
  std::vector<std::string> environment_texts = EnvironmentWith(program.environment);
  const std::vector<char*> arguments = PointersTo(argument_texts);
  const std::vector<char*> environment = PointersTo(environment_texts);
  int output[2], go[2], report[2];
  if (pipe2(output, O_CLOEXEC) != 0 || pipe2(go, O_CLOEXEC) != 0 || pipe2(report, O_CLOEXEC) != 0) {
    process->started.set_value(
        absl::ResourceExhaustedError(absl::StrCat("pipe: ", std::strerror(errno))));
    return;
  }
  const pid_t daemon = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    BecomeProgram(daemon, output[1], go[0], report[1], arguments.data(), environment.data());
  }
  const int fork_error = errno;
  process->output = output[0];
  for (const int file : {output[1], go[0], report[1]}) close(file);
  absl::Status status;
  if (pid < 0) {
    status = absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(fork_error)));
  } else {
    (void)setpgid(pid, pid);  // parent or child, whichever is first
    const absl::StatusOr<ProcessIdentity> identity = IdentifyProcess(pid);
    status = identity.ok() ? WriteProcessRecord(options_.record_directory, program.name, *identity)
                           : identity.status();
    process->handle = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (process->handle < 0) {
      status.Update(absl::UnavailableError(absl::StrCat("pidfd_open: ", std::strerror(errno))));
    }
    if (status.ok() && write(go[1], "x", 1) != 1) {
      status = absl::InternalError(absl::StrCat("starting: ", std::strerror(errno)));
    }
  }
  close(go[1]);
  int exec_error = 0;
  if (status.ok() && read(report[0], &exec_error, sizeof exec_error) == sizeof exec_error) {
    status = ExecError(program.arguments[0], exec_error);
  }
  close(report[0]);
  if (!status.ok()) {
    if (pid > 0) (void)waitpid(pid, nullptr, 0);
    RemoveProcessRecord(options_.record_directory, program.name);
    process->started.set_value(status);
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    process->pid = pid;
  }
  process->started.set_value(absl::OkStatus());
  Watch(*process);
  if (options_.ended) options_.ended(program.name);
}

void ProcessSupervisor::Watch(Process& process) {
  const int64_t oom_before = options_.oom_kills ? options_.oom_kills() : 0;
  char bytes[kReadBytes];
  bool open = true;
  const auto take = [&] {
    const ssize_t got = read(process.output, bytes, sizeof bytes);
    if (got > 0) process.log->Append({bytes, static_cast<size_t>(got)});
    if (got == 0) open = false;
  };
  while (true) {
    int wait = -1;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto now = SteadyClock::now();
      if (process.kill_at <= now) {
        process.kill_at = kNever;
        process.killed = true;
        (void)kill(-process.pid, SIGKILL);
      } else if (process.kill_at != kNever) {
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(process.kill_at - now).count();
        wait = static_cast<int>(std::min<int64_t>(left, 1 << 30));
      }
    }
    pollfd waits[] = {{.fd = process.handle, .events = POLLIN},
                      {.fd = process.wake, .events = POLLIN},
                      {.fd = open ? process.output : -1, .events = POLLIN}};
    (void)poll(waits, 3, wait);
    eventfd_t ignored;
    (void)eventfd_read(process.wake, &ignored);
    if (waits[2].revents != 0) take();
    if (waits[0].revents != 0) break;
  }
  // The process has ended but is not reaped, so the group id is still its own: kill the group.
  (void)kill(-process.pid, SIGKILL);
  pollfd last = {.fd = process.output, .events = POLLIN};
  while (open && poll(&last, 1, kLastWordsMs) > 0) take();
  const int64_t oom_after = options_.oom_kills ? options_.oom_kills() : 0;
  int status = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  (void)waitpid(process.pid, &status, 0);
  process.reaped = true;
  RemoveProcessRecord(options_.record_directory, process.program.name);
  ProcessExit exit = {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                      .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                      .terminated = process.terminated,
                      .log_tail = process.log->Tail()};
  exit.killed = exit.signal == SIGKILL && process.killed;
  exit.out_of_memory = exit.signal == SIGKILL && !process.killed && oom_after > oom_before;
  process.exit = std::move(exit);
  process.log->End();
}

std::shared_ptr<ProcessSupervisor::Process> ProcessSupervisor::Find(const std::string& name) const {
  const auto at = processes_.find(name);
  return at == processes_.end() ? nullptr : at->second;
}

namespace {

absl::Status NoSuch(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("program: '", name, "' does not run"));
}

}  // namespace

absl::Status ProcessSupervisor::Terminate(const std::string& name,
                                          std::chrono::milliseconds grace) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<Process> process = Find(name);
  if (process == nullptr || process->pid == 0 || process->reaped) return NoSuch(name);
  if (!process->terminated) (void)kill(process->pid, SIGTERM);
  process->terminated = true;
  process->kill_at = std::min(process->kill_at, SteadyClock::now() + grace);
  (void)eventfd_write(process->wake, 1);
  return absl::OkStatus();
}

absl::Status ProcessSupervisor::Kill(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<Process> process = Find(name);
  if (process == nullptr || process->pid == 0 || process->reaped) return NoSuch(name);
  process->terminated = process->killed = true;
  (void)kill(-process->pid, SIGKILL);
  return absl::OkStatus();
}

absl::Status ProcessSupervisor::Signal(const std::string& name, int signal) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<Process> process = Find(name);
  if (process == nullptr || process->pid == 0 || process->reaped) return NoSuch(name);
  if (kill(process->pid, signal) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("kill: ", std::strerror(errno)));
}

absl::StatusOr<std::optional<ProcessExit>> ProcessSupervisor::ExitOf(
    const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<Process> process = Find(name);
  if (process == nullptr) return NoSuch(name);
  return process->exit;
}

absl::StatusOr<pid_t> ProcessSupervisor::PidOf(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<Process> process = Find(name);
  if (process == nullptr || process->pid == 0 || process->reaped) return NoSuch(name);
  return process->pid;
}

std::shared_ptr<const RankLog> ProcessSupervisor::LogOf(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<Process> process = Find(name);
  return process == nullptr ? nullptr : process->log;
}

absl::Status ProcessSupervisor::Forget(const std::string& name) {
  std::shared_ptr<Process> process;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    process = Find(name);
    if (process == nullptr) return NoSuch(name);
    if (!process->exit.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat("program: '", name, "' runs"));
    }
    processes_.erase(name);
  }
  process->thread.join();
  return absl::OkStatus();
}

std::vector<std::string> ProcessSupervisor::Names() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, process] : processes_) names.push_back(name);
  return names;
}

}  // namespace nibble
