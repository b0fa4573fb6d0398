// The record of changes and refusals: one JSON object a line, in a file that is rotated.
//
//   {"time":"2026-05-01T10:00:00.000Z","who":"ann","role":"submitter","proof":"token 0123456789ab",
//    "from":"ipv4:10.0.0.7:41234","peer":"nibble://client/cli","call":"/nibble.v1.Coordinator/
//    CancelJob","subject":"job train-7","request":"8f…","outcome":"done","code":"OK"}
//
// A line with a "count" is of that many refusals of one address, which have no lines of their own.
//
// Outcomes: "done", "failed" (the coordinator refused the change itself) and "refused" (the caller
// may not make the call). Requests are never written whole, and nothing of a token but its id.
//
// At `file_bytes` the file becomes PATH.1, PATH.1 becomes PATH.2, and so on to PATH.`files`. A line
// is written before the answer goes out, by one write(2), and reaches the disk when the kernel
// writes it. If the file cannot be written, calls continue and the loss is counted.
//
// Ownership: owns its file. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_ACCESS_AUDIT_LOG_H_
#define NIBBLE_SERVER_ACCESS_AUDIT_LOG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"

namespace nibble {

struct AuditEntry {
  int64_t time_unix_ms = 0;
  std::string who;       // identity; empty: unknown
  std::string role;      // as RoleText
  std::string proof;     // of AccessCaller
  std::string from;      // address, as gRPC writes it
  std::string peer;      // name in the certificate; empty: none
  std::string call;      // such as "/nibble.v1.Coordinator/CancelJob"
  std::string subject;   // of SubjectOf
  std::string request;   // request id; empty: none
  bool refused = false;  // the caller may not make the call
  absl::Status status;   // of the call
  int64_t count = 0;     // of refusals that the line is of; 0: it is of one call
};

// The line of an entry, without its newline.
std::string AuditLine(const AuditEntry& entry);

class AuditLog {
 public:
  struct Options {
    std::string path;
    int64_t file_bytes = int64_t{64} << 20;
    int files = 8;                                    // rotated ones that are kept
    std::function<void(const absl::Status&)> failed;  // a line was lost; may be null
  };

  // Continues an existing file. The system's error if it cannot be opened for appending.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(Options options);
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void Write(const AuditEntry& entry);

 private:
  explicit AuditLog(Options options) : options_(std::move(options)) {}
  absl::Status OpenFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Append(absl::string_view line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Rotate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Mutex mutex_;
  int file_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // in the file
  bool torn_ ABSL_GUARDED_BY(mutex_) = false;  // it ends within a line
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_ACCESS_AUDIT_LOG_H_
