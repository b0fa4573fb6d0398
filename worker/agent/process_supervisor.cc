#include "worker/agent/process_supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
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
#include "common/descriptor.h"
#include "common/errno_error.h"
#include "common/process/process.h"
#include "common/process/spawn.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr size_t kLogReadBytes = 65536;
// After the process and its group have ended, only a descendant that left the group may still
// write.
constexpr int kLastOutputMs = 200;
constexpr int kLastReads = 32;  // more than a full pipe needs; such a descendant may never stop

}  // namespace

struct ProcessSupervisor::Process {
  explicit Process(Program program) : program(std::move(program)) {}

  const Program program;  // except for its name and log
  std::thread thread;
  OwnedDescriptor output;  // the reading end of its standard output and error
  ProcessHandle handle;
  std::promise<absl::Status> started;

  Mutex mutex;
  std::string name ABSL_GUARDED_BY(mutex);
  std::shared_ptr<RankLog> log ABSL_GUARDED_BY(mutex);
  // The process is reaped only under the mutex, so that a signal never reaches another process.
  bool running ABSL_GUARDED_BY(mutex) = false;  // started and not reaped
  pid_t pid ABSL_GUARDED_BY(mutex) = 0;
  bool killed ABSL_GUARDED_BY(mutex) = false;
  std::optional<ProcessExit> exit ABSL_GUARDED_BY(mutex);
  CondVar ended;  // `exit` is known
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
  for (const std::string& name : Names()) {
    const std::shared_ptr<Process> process = Find(name);
    (void)Kill(name);
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
  auto process = std::make_shared<Process>(program);
  {
    MutexLock lock(&process->mutex);
    process->name = program.name;
    process->log = std::move(log);
  }
  {
    MutexLock lock(&mutex_);
    if (!processes_.emplace(program.name, process).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("program: a process with the name '", program.name, "' exists"));
    }
  }
  std::future<absl::Status> started = process->started.get_future();
  process->thread = std::thread([this, process] { Run(*process); });
  absl::Status status = started.get();
  if (!status.ok()) {
    process->thread.join();
    MutexLock lock(&mutex_);
    processes_.erase(program.name);
  }
  return status;
}

absl::Status ProcessSupervisor::Spawn(Process& process) {
  const Program& program = process.program;
  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) return ErrnoError(errno, "making a pipe");
  process.output = OwnedDescriptor(output[0]);
  const absl::StatusOr<pid_t> pid = SpawnProcess(
      {.arguments = program.arguments,
       .environment = program.environment,
       .output = output[1],
       .error = output[1],
       .group = SpawnOptions::Group::kOwn,
       .dies_with_thread = true,
       .cpus = program.cpus,
       .memory_node = program.memory_node,
       // A process that could not be recorded, or not be waited for, must not run.
       .before_program = [&](pid_t child) -> absl::Status {
         NIBBLE_ASSIGN_OR_RETURN(const ProcessIdentity identity, IdentifyProcess(child));
         process.handle = ProcessHandle(child);
         if (!process.handle.valid()) return ErrnoError(errno, "pidfd_open");
         return WriteProcessRecord(options_.record_directory, program.name, identity);
       }});
  close(output[1]);
  if (!pid.ok()) {
    RemoveProcessRecord(options_.record_directory, program.name);
    return pid.status();
  }
  MutexLock lock(&process.mutex);
  process.pid = *pid;
  process.running = true;
  return absl::OkStatus();
}

// The thread of one process. It starts the process, because the kernel binds the death signal to
// the thread that does.
void ProcessSupervisor::Run(Process& process) {
  const int64_t oom_before = options_.oom_kills ? options_.oom_kills() : 0;
  const absl::Status started = Spawn(process);
  process.started.set_value(started);
  if (!started.ok()) return;
  CollectOutput(process);
  const int64_t oom_after = options_.oom_kills ? options_.oom_kills() : 0;
  ProcessExit exit = Reap(process);
  exit.out_of_memory = exit.signal == SIGKILL && !exit.killed && oom_after > oom_before;
  std::string name;
  std::shared_ptr<RankLog> log;
  {
    // It is renamed only while it runs.
    MutexLock lock(&process.mutex);
    name = process.name;
    log = process.log;
  }
  // Before the exit is published: then the name can be used again.
  RemoveProcessRecord(options_.record_directory, name);
  exit.log_tail = log->Tail();
  {
    MutexLock lock(&process.mutex);
    process.exit = std::move(exit);
    process.ended.SignalAll();
  }
  log->End();
  if (options_.ended) options_.ended(name);
}

void ProcessSupervisor::CollectOutput(Process& process) {
  char bytes[kLogReadBytes];
  bool open = true;
  const auto collect = [&] {
    const ssize_t got = read(process.output.get(), bytes, sizeof bytes);
    if (got > 0) LogOf(process)->Append({bytes, static_cast<size_t>(got)});
    if (got == 0) open = false;
  };
  while (true) {
    pollfd waits[] = {{.fd = process.handle.fd(), .events = POLLIN},
                      {.fd = open ? process.output.get() : -1, .events = POLLIN}};
    (void)poll(waits, 2, -1);
    if (waits[1].revents != 0) collect();
    if (waits[0].revents != 0) break;
  }
  // The process has ended but is not reaped, so the group id is still its own: kill the group.
  {
    MutexLock lock(&process.mutex);
    (void)kill(-process.pid, SIGKILL);
  }
  pollfd last = {.fd = process.output.get(), .events = POLLIN};
  for (int i = 0; i < kLastReads && open && poll(&last, 1, kLastOutputMs) > 0; ++i) collect();
}

ProcessExit ProcessSupervisor::Reap(Process& process) {
  int status = 0;
  MutexLock lock(&process.mutex);
  (void)waitpid(process.pid, &status, 0);
  process.running = false;
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
          .signal = signal,
          .killed = signal == SIGKILL && process.killed};
}

std::shared_ptr<ProcessSupervisor::Process> ProcessSupervisor::Find(const std::string& name) const {
  MutexLock lock(&mutex_);
  const auto at = processes_.find(name);
  return at == processes_.end() ? nullptr : at->second;
}

namespace {

absl::Status NotRunning(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("program: no process with the name '", name, "' runs"));
}

}  // namespace

absl::Status ProcessSupervisor::Rename(const std::string& name, const std::string& new_name,
                                       const std::string& log_path) {
  const std::shared_ptr<Process> process = Find(name);
  if (process == nullptr) return NotRunning(name);
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<RankLog> log,
                          RankLog::Create(log_path, process->program.log_limits));
  std::shared_ptr<RankLog> before;
  {
    MutexLock names(&mutex_);
    if (!processes_.emplace(new_name, process).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("program: a process with the name '", new_name, "' exists"));
    }
  }
  const auto take_name = [&]() -> absl::Status {
    std::optional<ProcessIdentity> identity;
    {
      MutexLock lock(&process->mutex);
      if (!process->running) return NotRunning(name);
      // Not reaped meanwhile, so the process id is its own.
      NIBBLE_ASSIGN_OR_RETURN(identity, IdentifyProcess(process->pid));
    }
    // A record of a process that has ended is harmless: its start time tells.
    NIBBLE_RETURN_IF_ERROR(WriteProcessRecord(options_.record_directory, new_name, *identity));
    MutexLock lock(&process->mutex);
    if (!process->running) return NotRunning(name);
    process->name = new_name;
    before = std::exchange(process->log, std::move(log));
    return absl::OkStatus();
  };
  const absl::Status status = take_name();
  if (status.ok()) before->End();
  RemoveProcessRecord(options_.record_directory, status.ok() ? name : new_name);
  MutexLock names(&mutex_);
  processes_.erase(status.ok() ? name : new_name);
  return status;
}

absl::Status ProcessSupervisor::Kill(const std::string& name) {
  const std::shared_ptr<Process> process = Find(name);
  if (process == nullptr) return NotRunning(name);
  MutexLock lock(&process->mutex);
  if (!process->running) return NotRunning(name);
  process->killed = true;
  (void)kill(-process->pid, SIGKILL);
  return absl::OkStatus();
}

absl::Status ProcessSupervisor::Signal(const std::string& name, int signal) {
  const std::shared_ptr<Process> process = Find(name);
  if (process == nullptr) return NotRunning(name);
  MutexLock lock(&process->mutex);
  if (!process->running) return NotRunning(name);
  if (kill(process->pid, signal) == 0) return absl::OkStatus();
  return ErrnoError(errno, absl::StrCat("sending signal ", signal, " to"), name);
}

absl::StatusOr<std::optional<ProcessExit>> ProcessSupervisor::ExitOf(
    const std::string& name) const {
  const std::shared_ptr<Process> process = Find(name);
  if (process == nullptr) return NotRunning(name);
  MutexLock lock(&process->mutex);
  return process->exit;
}

absl::StatusOr<ProcessExit> ProcessSupervisor::AwaitEnd(const std::string& name) {
  const std::shared_ptr<Process> process = Find(name);
  if (process == nullptr) return NotRunning(name);
  {
    MutexLock lock(&process->mutex);
    while (!process->exit.has_value()) process->ended.Wait(&process->mutex);
  }
  NIBBLE_RETURN_IF_ERROR(Forget(name));
  MutexLock lock(&process->mutex);
  return *process->exit;
}

absl::StatusOr<pid_t> ProcessSupervisor::PidOf(const std::string& name) const {
  const std::shared_ptr<Process> process = Find(name);
  if (process == nullptr) return NotRunning(name);
  MutexLock lock(&process->mutex);
  if (!process->running) return NotRunning(name);
  return process->pid;
}

std::shared_ptr<RankLog> ProcessSupervisor::LogOf(Process& process) {
  MutexLock lock(&process.mutex);
  return process.log;
}

std::shared_ptr<const RankLog> ProcessSupervisor::LogOf(const std::string& name) const {
  const std::shared_ptr<Process> process = Find(name);
  return process == nullptr ? nullptr : LogOf(*process);
}

absl::Status ProcessSupervisor::Forget(const std::string& name) {
  const std::shared_ptr<Process> process = Find(name);
  if (process == nullptr) return NotRunning(name);
  {
    MutexLock lock(&process->mutex);
    if (!process->exit.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("program: the process with the name '", name, "' still runs"));
    }
  }
  {
    MutexLock lock(&mutex_);
    if (processes_.erase(name) == 0) return NotRunning(name);
  }
  process->thread.join();
  return absl::OkStatus();
}

std::vector<std::string> ProcessSupervisor::Names() const {
  MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [name, process] : processes_) names.push_back(name);
  return names;
}

}  // namespace nibble
