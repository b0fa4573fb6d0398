// Requests for a backup at once. Coordinator and requester share the directory of backups, and
// whoever may write there may request one; so a request needs no connection and no credentials.
//
//   request   a line of text that differs from earlier requests, written by the requester
//   answer    that line, and "made N" or "failed: why" in the next, written by the coordinator
//   running   locked by the coordinator that answers here, as long as it runs
//
// The first two are replaced atomically. Ownership: values. Thread-safety: free functions.
#ifndef NIBBLE_SERVER_BACKUP_BACKUP_REQUEST_H_
#define NIBBLE_SERVER_BACKUP_BACKUP_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/file_lock.h"

namespace nibble {

// The requester's side. An answer is the number of the backup, or Internal with the coordinator's
// reason; unset: not answered yet.
absl::Status WriteBackupRequest(const std::string& directory, const std::string& request);
std::optional<absl::StatusOr<uint32_t>> ReadBackupAnswer(const std::string& directory,
                                                         const std::string& request);
// Whether a coordinator runs that answers in this directory.
absl::StatusOr<bool> AnswersBackupRequests(const std::string& directory);
// Takes an unanswered request back.
absl::Status RemoveBackupRequest(const std::string& directory);

// The coordinator's side. Kept while it answers. The errors of FileLock::TryAcquire.
absl::StatusOr<FileLock> LockBackupRequests(const std::string& directory);
// Unset: there is none.
std::optional<std::string> ReadBackupRequest(const std::string& directory);
// Answers the request and removes it, unless another one has replaced it since.
absl::Status AnswerBackupRequest(const std::string& directory, const std::string& request,
                                 const absl::StatusOr<uint32_t>& result);

}  // namespace nibble

#endif  // NIBBLE_SERVER_BACKUP_BACKUP_REQUEST_H_
