// Errors of system calls as statuses: the one place where an errno becomes a status code.
//
// Thread-safety: a pure function.
#ifndef NIBBLE_COMMON_ERRNO_ERROR_H_
#define NIBBLE_COMMON_ERRNO_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace nibble {

// "opening /a/b: Permission denied", with the code that absl::ErrnoToStatus gives to `error`, such
// as NotFound, PermissionDenied, AlreadyExists or FailedPrecondition, except that
//
//   ResourceExhausted  also stands for EFBIG, the process's limit on the size of files
//   Internal           stands for EIO, an error of the device, and for unknown numbers; also for 0,
//                      if the call that failed left no errno
//
// ResourceExhausted is a full disk (ENOSPC), an exhausted quota (EDQUOT) or too many open files
// (EMFILE, ENFILE). Unavailable means that the same call may succeed when it is repeated.
absl::Status ErrnoError(int error, absl::string_view doing, absl::string_view path = "");

}  // namespace nibble

#endif  // NIBBLE_COMMON_ERRNO_ERROR_H_
