#include "common/process/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errno_error.h"
#include "common/files/files.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;

constexpr char kSuffix[] = ".process";
constexpr size_t kMaxBytes = size_t{1} << 16;  // of a record or a file of /proc
constexpr size_t kStartField = 19;             // after the program's name in /proc/PID/stat
constexpr milliseconds kAfterKill(10'000);

// Waits for POLLIN on any of the descriptors; true if one has it.
bool Poll(std::vector<pollfd> waits, milliseconds patience) {
  int ready;
  do {
    ready = poll(waits.data(), waits.size(), static_cast<int>(patience.count()));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

// Reaps the process if it is our child.
void Reap(const ProcessIdentity& identity) {
  (void)waitpid(static_cast<pid_t>(identity.pid), nullptr, WNOHANG);
}

absl::Status StillThere(int64_t pid, milliseconds patience) {
  return absl::DeadlineExceededError(
      absl::StrCat("process ", pid, " still runs ", patience.count(), " ms after it was killed"));
}

absl::StatusOr<ProcessIdentity> ReadRecord(const std::string& path) {
  const auto damaged = [&path](const auto&... why) {
    return absl::DataLossError(absl::StrCat(path, " is not a record of a process: ", why...));
  };
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxBytes);
  if (!text.ok()) return damaged(text.status().message());
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  const bool complete = json.is_object() && json.contains("pid") &&
                        json["pid"].is_number_integer() && json.contains("start_ticks") &&
                        json["start_ticks"].is_number_integer() && json.contains("boot_id") &&
                        json["boot_id"].is_string();
  if (!complete) return damaged("it has no pid, start_ticks and boot_id");
  ProcessIdentity identity = {.pid = json["pid"].get<int64_t>(),
                              .start_ticks = json["start_ticks"].get<int64_t>(),
                              .boot_id = json["boot_id"].get<std::string>()};
  if (identity.pid <= 1) return damaged("pid ", identity.pid, " is not above 1");
  return identity;
}

// True if it still ran and was killed.
absl::StatusOr<bool> KillAndWait(const ProcessIdentity& identity, milliseconds patience) {
  const auto pid = static_cast<pid_t>(identity.pid);
  // Open before identifying, so that the identified process is the one that is waited for.
  const ProcessHandle handle(pid);
  if (!handle.valid()) {
    if (errno == ESRCH) return false;
    return ErrnoError(errno, "pidfd_open of process", absl::StrCat(pid));
  }
  const absl::StatusOr<ProcessIdentity> now = IdentifyProcess(pid);
  if (absl::IsResourceExhausted(now.status())) return now.status();
  if (!now.ok() || *now != identity) return false;
  // It leads its own group (SpawnOptions::Group), which is killed with it.
  (void)kill(-pid, SIGKILL);
  handle.Signal(SIGKILL);
  if (handle.AwaitEnd(patience)) return true;
  return StillThere(pid, patience);
}

}  // namespace

absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid) {
  const absl::StatusOr<std::string> read =
      ReadWholeFile(absl::StrCat("/proc/", pid, "/stat"), kMaxBytes);
  if (absl::IsResourceExhausted(read.status())) return read.status();  // no descriptor is left
  const std::string stat = read.value_or("");
  // The program's name before it may contain anything, including brackets and spaces.
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) {
    return absl::NotFoundError(absl::StrCat("there is no process ", pid));
  }
  const std::vector<std::string> fields =
      absl::StrSplit(stat.substr(name_end + 1), ' ', absl::SkipEmpty());
  ProcessIdentity identity = {.pid = pid};
  if (fields.size() <= kStartField ||
      !absl::SimpleAtoi(fields[kStartField], &identity.start_ticks)) {
    return absl::InternalError(absl::StrCat("/proc/", pid, "/stat has no start time"));
  }
  const std::string boot_id =
      ReadWholeFile("/proc/sys/kernel/random/boot_id", kMaxBytes).value_or("");
  identity.boot_id = std::string(absl::StripAsciiWhitespace(boot_id));
  return identity;
}

// The library's own wrappers of these calls are not declared for C++ in Debian 12.
ProcessHandle::ProcessHandle(pid_t pid)
    : fd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))),
      unseen_(valid() || errno == ESRCH ? 0 : pid) {}

ProcessHandle::ProcessHandle(const ProcessIdentity& identity) {
  const auto pid = static_cast<pid_t>(identity.pid);
  if (pid <= 1) return;
  ProcessHandle handle(pid);
  unseen_ = handle.unseen_;
  if (!handle.valid()) return;
  // Identify after opening, so that the identified process is the one that the pidfd refers to.
  const absl::StatusOr<ProcessIdentity> now = IdentifyProcess(pid);
  if (now.ok() && *now == identity) {
    fd_ = std::move(handle.fd_);
  } else if (!now.ok() && !absl::IsNotFound(now.status())) {
    unseen_ = pid;
  }
}

bool ProcessHandle::AwaitEnd(milliseconds patience) const {
  if (valid()) return Poll({{.fd = fd(), .events = POLLIN}}, patience);
  if (unseen_ == 0) return true;
  const auto has_ended = [this] { return kill(unseen_, 0) != 0 && errno == ESRCH; };
  if (has_ended()) return true;
  (void)Poll({}, patience);
  return has_ended();
}

void ProcessHandle::Signal(int signal) const {
  if (valid()) (void)syscall(SYS_pidfd_send_signal, fd(), signal, nullptr, 0);
}

bool IsAlive(const ProcessIdentity& identity) {
  if (!ProcessHandle(identity).AwaitEnd(milliseconds(0))) return true;
  Reap(identity);
  return false;
}

void SignalProcess(const ProcessIdentity& identity, int signal) {
  ProcessHandle(identity).Signal(signal);
}

bool AwaitAnyEnd(absl::Span<const ProcessIdentity> identities, milliseconds patience) {
  std::vector<ProcessHandle> handles;
  std::vector<pollfd> waits;
  for (const ProcessIdentity& identity : identities) {
    handles.emplace_back(identity);
    if (handles.back().AwaitEnd(milliseconds(0))) return true;
    // poll passes over the negative descriptor of one that could not be opened.
    waits.push_back({.fd = handles.back().fd(), .events = POLLIN});
  }
  return Poll(std::move(waits), patience);
}

absl::StatusOr<bool> EndProcess(const ProcessIdentity& identity, milliseconds grace) {
  const ProcessHandle handle(identity);
  handle.Signal(SIGTERM);
  // A stopped process receives no other signal.
  handle.Signal(SIGCONT);
  const bool by_itself = handle.AwaitEnd(grace);
  if (!by_itself) {
    handle.Signal(SIGKILL);
    if (!handle.AwaitEnd(kAfterKill)) return StillThere(identity.pid, kAfterKill);
  }
  Reap(identity);
  return by_itself;
}

absl::Status WriteProcessRecord(const std::string& directory, const std::string& name,
                                const ProcessIdentity& identity) {
  const std::string text = nlohmann::json({{"pid", identity.pid},
                                           {"start_ticks", identity.start_ticks},
                                           {"boot_id", identity.boot_id}})
                               .dump();
  return ReplaceFile(absl::StrCat(directory, "/", name, kSuffix), text);
}

void RemoveProcessRecord(const std::string& directory, const std::string& name) {
  (void)unlink(absl::StrCat(directory, "/", name, kSuffix).c_str());
}

absl::StatusOr<std::vector<Leftover>> KillLeftovers(const std::string& directory,
                                                    milliseconds patience) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory));
  std::vector<Leftover> leftovers;
  absl::Status status;
  for (const std::string& file : names) {
    const std::filesystem::path path = std::filesystem::path(directory) / file;
    if (path.extension() != kSuffix) continue;
    const absl::StatusOr<ProcessIdentity> identity = ReadRecord(path);
    if (!identity.ok()) {
      status.Update(identity.status());
      continue;
    }
    const absl::StatusOr<bool> killed = KillAndWait(*identity, patience);
    if (!killed.ok()) {
      status.Update(killed.status());
      continue;
    }
    leftovers.push_back({.name = path.stem(), .identity = *identity, .killed = *killed});
    (void)unlink(path.c_str());
  }
  if (!status.ok()) return status;
  return leftovers;
}

}  // namespace nibble
