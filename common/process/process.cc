#include "common/process/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/staged_file.h"

namespace nibble {
namespace {

constexpr char kSuffix[] = ".process";
constexpr size_t kStartField = 19;  // after the program's name in /proc/PID/stat

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

absl::StatusOr<ProcessIdentity> ReadRecord(const std::string& path) {
  const nlohmann::json json = nlohmann::json::parse(ReadWhole(path), nullptr, false);
  const bool whole = json.is_object() && json.contains("pid") && json["pid"].is_number_integer() &&
                     json.contains("start_ticks") && json["start_ticks"].is_number_integer() &&
                     json.contains("boot_id") && json["boot_id"].is_string();
  if (!whole) return absl::DataLossError(absl::StrCat(path, ": is no record of a process"));
  ProcessIdentity identity = {.pid = json["pid"].get<int64_t>(),
                              .start_ticks = json["start_ticks"].get<int64_t>(),
                              .boot_id = json["boot_id"].get<std::string>()};
  if (identity.pid <= 1) {
    return absl::DataLossError(absl::StrCat(path, ": pid: ", identity.pid, " is not above 1"));
  }
  return identity;
}

// True if it still ran and was killed.
absl::StatusOr<bool> KillAndWait(const ProcessIdentity& identity,
                                 std::chrono::milliseconds patience) {
  const auto pid = static_cast<pid_t>(identity.pid);
  // Opened before the identity check, so that the checked process is the one waited for.
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (handle < 0) {
    if (errno == ESRCH) return false;
    return absl::UnavailableError(absl::StrCat("pidfd_open of ", pid, ": ", std::strerror(errno)));
  }
  const absl::StatusOr<ProcessIdentity> now = IdentifyProcess(pid);
  if (!now.ok() || *now != identity) {
    close(handle);
    return false;
  }
  // It leads its own group (ProcessSupervisor), which is killed with it.
  (void)kill(-pid, SIGKILL);
  (void)syscall(SYS_pidfd_send_signal, handle, SIGKILL, nullptr, 0);
  pollfd one = {.fd = handle, .events = POLLIN};
  const int ready = poll(&one, 1, static_cast<int>(patience.count()));
  close(handle);
  if (ready > 0) return true;
  return absl::DeadlineExceededError(absl::StrCat("process ", pid, " is still there ",
                                                  patience.count(), " ms after it was killed"));
}

}  // namespace

absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid) {
  const std::string stat = ReadWhole(absl::StrCat("/proc/", pid, "/stat"));
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
    return absl::InternalError(absl::StrCat("/proc/", pid, "/stat: has no start time"));
  }
  identity.boot_id =
      std::string(absl::StripAsciiWhitespace(ReadWhole("/proc/sys/kernel/random/boot_id")));
  return identity;
}

absl::Status WriteProcessRecord(const std::string& directory, const std::string& name,
                                const ProcessIdentity& identity) {
  const std::string text = nlohmann::json({{"pid", identity.pid},
                                           {"start_ticks", identity.start_ticks},
                                           {"boot_id", identity.boot_id}})
                               .dump();
  return WriteStaged(absl::StrCat(directory, "/", name, kSuffix), text);
}

void RemoveProcessRecord(const std::string& directory, const std::string& name) {
  (void)unlink(absl::StrCat(directory, "/", name, kSuffix).c_str());
}

absl::StatusOr<std::vector<Leftover>> KillLeftovers(const std::string& directory,
                                                    std::chrono::milliseconds patience) {
  std::vector<Leftover> leftovers;
  absl::Status status;
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("reading ", directory, ": ", error.message()));
  }
  for (const auto& entry : entries) {
    if (entry.path().extension() != kSuffix) continue;
    const absl::StatusOr<ProcessIdentity> identity = ReadRecord(entry.path());
    if (!identity.ok()) {
      status.Update(identity.status());
      continue;
    }
    const absl::StatusOr<bool> killed = KillAndWait(*identity, patience);
    if (!killed.ok()) {
      status.Update(killed.status());
      continue;
    }
    leftovers.push_back({.name = entry.path().stem(), .identity = *identity, .killed = *killed});
    std::filesystem::remove(entry.path(), error);
  }
  if (!status.ok()) return status;
  return leftovers;
}

std::vector<std::string> EnvironmentWith(const std::map<std::string, std::string>& over) {
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string entry = *at;
    if (!over.contains(entry.substr(0, entry.find('=')))) all.push_back(entry);
  }
  for (const auto& [name, value] : over) all.push_back(absl::StrCat(name, "=", value));
  return all;
}

std::vector<char*> PointersTo(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace nibble
