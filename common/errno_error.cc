#include "common/errno_error.h"

#include <cerrno>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace nibble {

absl::Status ErrnoError(int error, absl::string_view doing, absl::string_view path) {
  const std::string failed = absl::StrCat(doing, path.empty() ? "" : " ", path);
  if (error == 0) return absl::InternalError(absl::StrCat(failed, ": unknown error"));
  const absl::Status status = absl::ErrnoToStatus(error, failed);
  if (error == EFBIG) return absl::ResourceExhaustedError(status.message());
  if (absl::IsUnknown(status)) return absl::InternalError(status.message());
  return status;
}

}  // namespace nibble
