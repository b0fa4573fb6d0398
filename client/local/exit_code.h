// What the nibble command tells the shell.
//
// Thread-safety: constants and pure functions.
#ifndef NIBBLE_CLIENT_LOCAL_EXIT_CODE_H_
#define NIBBLE_CLIENT_LOCAL_EXIT_CODE_H_

#include "absl/status/status.h"

namespace nibble {

inline constexpr int kExitDone = 0;
inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitJobFailed = 100;    // the job that was followed has failed
inline constexpr int kExitNotFinished = 101;  // it is not finished, and nobody waits any longer
inline constexpr int kExitNotFound = 102;     // what the command names is not there
inline constexpr int kExitCancelled = 103;    // the job that was followed was cancelled

inline int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  return status.code() == absl::StatusCode::kNotFound ? kExitNotFound : kExitError;
}

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_EXIT_CODE_H_
