#include "server/access/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/descriptor.h"
#include "common/errno_error.h"
#include "common/files/files.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

// A message may quote a whole spec's errors.
constexpr size_t kMaxReasonBytes = 1000;

// The last byte of a file of that size; a newline if it cannot be read.
char LastByte(const std::string& path, int64_t bytes) {
  char last = '\n';
  const OwnedDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() >= 0) (void)!pread(file.get(), &last, 1, bytes - 1);
  return last;
}

const char* Outcome(const AuditEntry& entry) {
  if (entry.refused) return "refused";
  return entry.status.ok() ? "done" : "failed";
}

}  // namespace

std::string AuditLine(const AuditEntry& entry) {
  nlohmann::ordered_json line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMillis(entry.time_unix_ms),
                                  absl::UTCTimeZone());
  const auto add = [&line](const char* name, const std::string& value) {
    if (!value.empty()) line[name] = value;
  };
  add("who", entry.who);
  add("role", entry.role);
  add("proof", entry.proof);
  add("from", entry.from);
  add("peer", entry.peer);
  add("call", entry.call);
  add("subject", entry.subject);
  add("request", entry.request);
  if (entry.count > 0) line["count"] = entry.count;
  line["outcome"] = Outcome(entry);
  line["code"] = absl::StatusCodeToString(entry.status.code());
  add("reason", std::string(entry.status.message().substr(0, kMaxReasonBytes)));
  // Bytes that are not UTF-8 are replaced; newlines are escaped.
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(Options options) {
  std::unique_ptr<AuditLog> log(new AuditLog(std::move(options)));
  const MutexLock lock(&log->mutex_);
  NIBBLE_RETURN_IF_ERROR(log->OpenFile());
  return log;
}

AuditLog::~AuditLog() {
  const MutexLock lock(&mutex_);
  if (file_ >= 0) close(file_);
}

absl::Status AuditLog::OpenFile() {
  file_ = open(options_.path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
  if (file_ < 0) return ErrnoError(errno, "audit log: opening", options_.path);
  struct stat entry = {};
  if (fstat(file_, &entry) != 0) return ErrnoError(errno, "audit log: reading", options_.path);
  bytes_ = entry.st_size;
  torn_ = bytes_ > 0 && LastByte(options_.path, bytes_) != '\n';
  return absl::OkStatus();
}

void AuditLog::Rotate() {
  for (int i = options_.files - 1; i >= 1; --i) {
    const std::string from = absl::StrCat(options_.path, ".", i);
    (void)std::rename(from.c_str(), absl::StrCat(options_.path, ".", i + 1).c_str());
  }
  (void)std::rename(options_.path.c_str(), absl::StrCat(options_.path, ".1").c_str());
  close(file_);
  file_ = -1;
}

absl::Status AuditLog::Append(absl::string_view line) {
  if (file_ >= 0 && bytes_ > 0 && bytes_ + std::ssize(line) > options_.file_bytes) Rotate();
  // Also after an earlier failure.
  if (file_ < 0) NIBBLE_RETURN_IF_ERROR(OpenFile());
  // What is left of a line ends before this one, which would otherwise be lost with it.
  const std::string text = absl::StrCat(torn_ ? "\n" : "", line);
  const absl::Status written = WriteAll(
      file_, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()),
      options_.path);
  if (!written.ok()) {
    close(file_);
    file_ = -1;
    return written;
  }
  torn_ = false;
  bytes_ += std::ssize(text);
  return absl::OkStatus();
}

void AuditLog::Write(const AuditEntry& entry) {
  const std::string line = AuditLine(entry) + "\n";
  absl::Status status;
  {
    const MutexLock lock(&mutex_);
    status = Append(line);
  }
  if (!status.ok() && options_.failed) options_.failed(status);
}

}  // namespace nibble
