#include "common/process/spawn.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/descriptor.h"
#include "common/errno_error.h"

namespace nibble {
namespace {

constexpr int kNoExec = 127;  // exit code of a child that never ran its program; nobody reads it

// This process's environment as NAME=VALUE, with the variables of `over` replaced or added.
std::vector<std::string> EnvironmentWith(const std::map<std::string, std::string>& over) {
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string entry = *at;
    if (!over.contains(entry.substr(0, entry.find('=')))) all.push_back(entry);
  }
  for (const auto& [name, value] : over) all.push_back(absl::StrCat(name, "=", value));
  return all;
}

// Sets of CPUs and NUMA nodes as the kernel takes them.
class BitSet {
 public:
  void Add(int bit) {
    const auto word = static_cast<size_t>(bit) / kBits;
    if (words_.size() <= word) words_.resize(word + 1);
    words_[word] |= 1UL << (static_cast<size_t>(bit) % kBits);
  }
  const unsigned long* data() const { return words_.data(); }  // NOLINT(google-runtime-int)
  size_t bytes() const { return words_.size() * sizeof(words_[0]); }
  size_t bits() const { return words_.size() * kBits; }

 private:
  static constexpr size_t kBits = 8 * sizeof(unsigned long);  // NOLINT(google-runtime-int)
  std::vector<unsigned long> words_;                          // NOLINT(google-runtime-int)
};

// Pointers into `texts`, with a null pointer at the end, as exec takes them.
std::vector<char*> PointersTo(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct Pipe {
  OwnedDescriptor read, write;

  absl::Status Open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "making a pipe");
    read = OwnedDescriptor(ends[0]);
    write = OwnedDescriptor(ends[1]);
    return absl::OkStatus();
  }
};

// Everything that the child needs; made before the fork.
struct Child {
  const SpawnOptions& options;
  const char* program;
  char* const* arguments;
  char* const* environment;
  pid_t parent;
  int standard[3];  // descriptors for 0, 1 and 2; -1: as they are
  int go;           // yields a byte when the program may run
  int report;       // takes the errno of a failed step
  int unused[2];    // the parent's ends of these pipes
  int last_descriptor;
  const BitSet& cpus;   // empty: unchanged
  const BitSet& nodes;  // empty: unchanged
};

[[noreturn]] void Fail(int report) {
  const int error = errno;
  (void)!write(report, &error, sizeof error);
  _exit(kNoExec);
}

// Runs between fork and exec, with one thread and with locks that other threads may have held: only
// async-signal-safe calls.
[[noreturn]] void RunChild(Child child) {
  const SpawnOptions& options = child.options;
  // Otherwise the pipe `go` would never end for this process.
  for (const int fd : child.unused) (void)close(fd);
  if (options.group == SpawnOptions::Group::kOwn) (void)setpgid(0, 0);
  if (options.group == SpawnOptions::Group::kSession) (void)setsid();
  if (options.dies_with_thread) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != child.parent) _exit(kNoExec);  // the parent died before the line above
  }
  for (int signal = 1; signal < NSIG; ++signal) (void)::signal(signal, SIG_DFL);
  sigset_t none;
  (void)sigemptyset(&none);
  (void)sigprocmask(SIG_SETMASK,
                    options.blocked_signals == nullptr ? &none : options.blocked_signals, nullptr);
  // Move all of them above 2 first: one may be in the place of another.
  const auto above = [](int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 3); };
  child.go = above(child.go);
  child.report = above(child.report);
  for (int& fd : child.standard) {
    if (fd >= 0 && (fd = above(fd)) < 0) Fail(child.report);
  }
  for (int i = 0; i < 3; ++i) {
    if (child.standard[i] >= 0 && dup2(child.standard[i], i) < 0) Fail(child.report);
  }
  if (close_range(3, ~0u, CLOSE_RANGE_CLOEXEC) != 0) {
    for (int fd = 3; fd <= child.last_descriptor; ++fd) (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  // The kernel takes one bit less of nodes than it is told.
  if (child.cpus.bytes() > 0 &&
      syscall(SYS_sched_setaffinity, 0, child.cpus.bytes(), child.cpus.data()) != 0) {
    Fail(child.report);
  }
  if (child.nodes.bytes() > 0 &&
      syscall(SYS_set_mempolicy, MPOL_PREFERRED, child.nodes.data(), child.nodes.bits() + 1) != 0) {
    Fail(child.report);
  }
  char byte;
  ssize_t got;
  do {
    got = read(child.go, &byte, 1);
  } while (got < 0 && errno == EINTR);
  if (got != 1) _exit(kNoExec);  // before_program has failed, or the parent has ended
  (void)execve(child.program, child.arguments, child.environment);
  Fail(child.report);
}

absl::Status RunBeforeProgram(const SpawnOptions& options, pid_t pid, const Pipe& go) {
  if (options.before_program) {
    if (absl::Status status = options.before_program(pid); !status.ok()) return status;
  }
  if (write(go.write.get(), "x", 1) == 1) return absl::OkStatus();
  return ErrnoError(errno, "starting process", absl::StrCat(pid));
}

// The error that stopped the child, or 0 once its program runs.
int AwaitProgram(const Pipe& report) {
  int error = 0;
  ssize_t got;
  do {
    got = read(report.read.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  return got == sizeof error ? error : 0;
}

int LastDescriptor() {
  constexpr rlim_t kMost = 1 << 16;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return static_cast<int>(kMost);
  return static_cast<int>(std::min(limit.rlim_cur, kMost));
}

}  // namespace

absl::StatusOr<pid_t> SpawnProcess(const SpawnOptions& options) {
  if (options.arguments.empty()) return absl::InvalidArgumentError("program: has no arguments");
  const std::string& program = options.program.empty() ? options.arguments[0] : options.program;
  std::vector<std::string> argument_texts = options.arguments;
  std::vector<std::string> environment_texts = EnvironmentWith(options.environment);
  const std::vector<char*> arguments = PointersTo(argument_texts);
  const std::vector<char*> environment = PointersTo(environment_texts);
  Pipe go, report;
  if (absl::Status status = go.Open(); !status.ok()) return status;
  if (absl::Status status = report.Open(); !status.ok()) return status;
  BitSet cpus, nodes;
  for (const int cpu : options.cpus) cpus.Add(cpu);
  if (options.memory_node >= 0) nodes.Add(options.memory_node);
  OwnedDescriptor null;
  Child child = {.options = options,
                 .program = program.c_str(),
                 .arguments = arguments.data(),
                 .environment = environment.data(),
                 .parent = getpid(),
                 .standard = {options.input, options.output, options.error},
                 .go = go.read.get(),
                 .report = report.write.get(),
                 .unused = {go.write.get(), report.read.get()},
                 .last_descriptor = LastDescriptor(),
                 .cpus = cpus,
                 .nodes = nodes};
  for (int& fd : child.standard) {
    if (fd != SpawnOptions::kNull) continue;
    if (null.get() < 0) null = OwnedDescriptor(open("/dev/null", O_RDWR | O_CLOEXEC));
    if (null.get() < 0) return ErrnoError(errno, "opening", "/dev/null");
    fd = null.get();
  }
  const pid_t pid = fork();
  if (pid == 0) RunChild(child);
  if (pid < 0) return ErrnoError(errno, "fork for", program);
  // In parent and child, so that the group exists whichever is first.
  if (options.group == SpawnOptions::Group::kOwn) (void)setpgid(pid, pid);
  report.write = OwnedDescriptor();
  absl::Status status = RunBeforeProgram(options, pid, go);
  go.write = OwnedDescriptor();
  if (status.ok()) {
    if (const int error = AwaitProgram(report); error != 0) {
      status = ErrnoError(error, "executing", program);
    }
  }
  if (status.ok()) return pid;
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return status;
}

bool MaySetMemoryPolicy() { return syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0) == 0; }

absl::StatusOr<ProcessIdentity> StartDetached(const DetachedProgram& program) {
  const int log = open(program.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  if (log < 0) return ErrnoError(errno, "opening", program.log_path);
  const absl::Cleanup close_log = [log] { (void)close(log); };
  ProcessIdentity identity;
  const absl::StatusOr<pid_t> pid = SpawnProcess({.arguments = program.arguments,
                                                  .environment = program.environment,
                                                  .output = log,
                                                  .error = log,
                                                  .group = SpawnOptions::Group::kSession,
                                                  .before_program = [&identity](pid_t child) {
                                                    absl::StatusOr<ProcessIdentity> identified =
                                                        IdentifyProcess(child);
                                                    if (identified.ok())
                                                      identity = *std::move(identified);
                                                    return identified.status();
                                                  }});
  if (!pid.ok()) return pid.status();
  return identity;
}

}  // namespace nibble
