#include "client/cluster/local_processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/process/process.h"

namespace nibble {
namespace {

constexpr std::chrono::milliseconds kAfterKill(10'000);

// A pidfd: it refers to the same process for as long as it is open.
class Handle {
 public:
  explicit Handle(const ProcessIdentity& identity) {
    const auto pid = static_cast<pid_t>(identity.pid);
    if (pid <= 1) return;
    file_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (file_ < 0) return;
    // Identify after opening, so that the identified process is the one that the pidfd refers to.
    const absl::StatusOr<ProcessIdentity> now = IdentifyProcess(pid);
    if (now.ok() && *now == identity) return;
    close(file_);
    file_ = -1;
  }
  ~Handle() {
    if (file_ >= 0) close(file_);
  }
  Handle(Handle&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Handle& operator=(Handle&&) = delete;

  int file() const { return file_; }  // negative: there is no such process
  // True if it has ended.
  bool Wait(std::chrono::milliseconds patience) const {
    if (file_ < 0) return true;
    pollfd one = {.fd = file_, .events = POLLIN};
    int ready;
    do {
      ready = poll(&one, 1, static_cast<int>(patience.count()));
    } while (ready < 0 && errno == EINTR);
    return ready > 0;
  }
  void Signal(int signal) const {
    if (file_ >= 0) (void)syscall(SYS_pidfd_send_signal, file_, signal, nullptr, 0);
  }

 private:
  int file_ = -1;
};

// Reaps the process if it is our child.
void Reap(const ProcessIdentity& identity) {
  (void)waitpid(static_cast<pid_t>(identity.pid), nullptr, WNOHANG);
}

// The attributes of the new process.
class SpawnSettings {
 public:
  explicit SpawnSettings(const std::string& log_path) {
    posix_spawn_file_actions_init(&files_);
    posix_spawn_file_actions_addopen(&files_, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files_, 1, log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                     0640);
    posix_spawn_file_actions_adddup2(&files_, 1, 2);
    posix_spawn_file_actions_addclosefrom_np(&files_, 3);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes_, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes_, &signals);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  const posix_spawn_file_actions_t* files() const { return &files_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

}  // namespace

absl::StatusOr<ProcessIdentity> StartDetached(const DetachedProgram& program) {
  if (program.arguments.empty()) return absl::InvalidArgumentError("program: has no arguments");
  std::vector<std::string> argument_texts = program.arguments;
  std::vector<std::string> environment_texts = EnvironmentWith(program.environment);
  const SpawnSettings settings(program.log_path);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, program.arguments[0].c_str(), settings.files(), settings.attributes(),
                  PointersTo(argument_texts).data(), PointersTo(environment_texts).data());
  if (error != 0) {
    const std::string text =
        absl::StrCat("program: cannot execute '", program.arguments[0], "' with its log at ",
                     program.log_path, ": ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(text) : absl::FailedPreconditionError(text);
  }
  return IdentifyProcess(pid);
}

bool IsAlive(const ProcessIdentity& identity) {
  if (!Handle(identity).Wait(std::chrono::milliseconds(0))) return true;
  Reap(identity);
  return false;
}

void SignalProcess(const ProcessIdentity& identity, int signal) { Handle(identity).Signal(signal); }

bool AwaitAnyEnd(absl::Span<const ProcessIdentity> identities, std::chrono::milliseconds patience) {
  std::vector<Handle> handles;
  std::vector<pollfd> waits;
  for (const ProcessIdentity& identity : identities) {
    handles.emplace_back(identity);
    if (handles.back().file() < 0) return true;
    waits.push_back({.fd = handles.back().file(), .events = POLLIN});
  }
  return poll(waits.data(), waits.size(), static_cast<int>(patience.count())) > 0;
}

absl::StatusOr<bool> EndProcess(const ProcessIdentity& identity, std::chrono::milliseconds grace) {
  const Handle handle(identity);
  handle.Signal(SIGTERM);
  // A stopped process receives no other signal.
  handle.Signal(SIGCONT);
  bool by_itself = true;
  if (!handle.Wait(grace)) {
    by_itself = false;
    handle.Signal(SIGKILL);
    if (!handle.Wait(kAfterKill)) {
      return absl::DeadlineExceededError(absl::StrCat("process ", identity.pid, " is still there ",
                                                      kAfterKill.count(),
                                                      " ms after it was killed"));
    }
  }
  Reap(identity);
  return by_itself;
}

namespace {

constexpr int kLowest = 10'000;
constexpr int kUsualEphemeral = 32'768;
constexpr int kTries = 1000;

int FirstEphemeral() {
  int first = 0;
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  return range >> first ? first : kUsualEphemeral;
}

}  // namespace

bool IsPortFree(int port) {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (file < 0) return false;
  const int yes = 1;
  // A port closed a moment ago counts as free; one with a listener does not.
  (void)setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool free = bind(file, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                    listen(file, 1) == 0;
  close(file);
  return free;
}

absl::StatusOr<int> ChooseFreePort() {
  const int first = FirstEphemeral();
  const int lowest = first > kLowest ? kLowest : 1024;
  std::random_device random;
  std::uniform_int_distribution<int> draw(lowest, first > lowest ? first - 1 : 65'535);
  for (int i = 0; i < kTries; ++i) {
    const int port = draw(random);
    if (IsPortFree(port)) return port;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("port: none of ", kTries, " tried below ", first, " is free on 127.0.0.1"));
}

namespace {

constexpr std::streamoff kMostBytes = 4096;
constexpr size_t kMostLines = 12;

}  // namespace

std::string LogTail(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "(cannot be read)";
  const std::streamoff size = file.tellg();
  const std::streamoff begin = std::max<std::streamoff>(0, size - kMostBytes);
  file.seekg(begin);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  // The first one may be a partial line.
  size_t first = begin > 0 && lines.size() > 1 ? 1 : 0;
  if (lines.size() - first > kMostLines) first = lines.size() - kMostLines;
  lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(first));
  return lines.empty() ? "(is empty)" : absl::StrJoin(lines, "\n");
}

}  // namespace nibble
