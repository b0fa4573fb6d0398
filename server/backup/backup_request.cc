#include "server/backup/backup_request.h"

#include <cstddef>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/files/files.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr size_t kMaxBytes = 16384;
constexpr absl::string_view kMade = "made ";
constexpr absl::string_view kFailed = "failed: ";

std::string RequestPath(const std::string& directory) { return directory + "/request"; }
std::string AnswerPath(const std::string& directory) { return directory + "/answer"; }
std::string RunningPath(const std::string& directory) { return directory + "/running"; }

}  // namespace

absl::Status WriteBackupRequest(const std::string& directory, const std::string& request) {
  return ReplaceFile(RequestPath(directory), request + "\n");
}

std::optional<absl::StatusOr<uint32_t>> ReadBackupAnswer(const std::string& directory,
                                                         const std::string& request) {
  const absl::StatusOr<std::string> text = ReadWholeFile(AnswerPath(directory), kMaxBytes);
  if (!text.ok()) return std::nullopt;
  absl::string_view rest = *text;
  if (!absl::ConsumePrefix(&rest, request + "\n")) return std::nullopt;
  rest = absl::StripSuffix(rest, "\n");
  uint32_t id = 0;
  if (absl::ConsumePrefix(&rest, kMade) && absl::SimpleAtoi(rest, &id)) return id;
  return absl::InternalError(absl::StripPrefix(rest, kFailed));
}

absl::StatusOr<bool> AnswersBackupRequests(const std::string& directory) {
  return FileLock::IsTaken(RunningPath(directory));
}

absl::StatusOr<FileLock> LockBackupRequests(const std::string& directory) {
  return FileLock::TryAcquire(RunningPath(directory));
}

absl::Status RemoveBackupRequest(const std::string& directory) {
  return RemoveTree(RequestPath(directory));
}

std::optional<std::string> ReadBackupRequest(const std::string& directory) {
  const absl::StatusOr<std::string> text = ReadWholeFile(RequestPath(directory), kMaxBytes);
  if (!text.ok() || text->empty()) return std::nullopt;
  return text->substr(0, text->find('\n'));
}

absl::Status AnswerBackupRequest(const std::string& directory, const std::string& request,
                                 const absl::StatusOr<uint32_t>& result) {
  const std::string line =
      result.ok() ? absl::StrCat(kMade, *result) : absl::StrCat(kFailed, result.status().message());
  NIBBLE_RETURN_IF_ERROR(
      ReplaceFile(AnswerPath(directory), absl::StrCat(request, "\n", line.substr(0, 8192), "\n")));
  if (ReadBackupRequest(directory) != request) return absl::OkStatus();
  return RemoveBackupRequest(directory);
}

}  // namespace nibble
