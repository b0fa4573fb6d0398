#include "common/errno_error.h"

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace nibble {

absl::Status ErrnoError(int error, absl::string_view doing, absl::string_view path) {
  const absl::Status status =
      absl::ErrnoToStatus(error, absl::StrCat(doing, path.empty() ? "" : " ", path));
  if (error == EFBIG) return absl::ResourceExhaustedError(status.message());
  if (absl::IsUnknown(status)) return absl::InternalError(status.message());
  return status;
}

}  // namespace nibble
