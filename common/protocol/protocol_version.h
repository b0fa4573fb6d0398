// Which coordinators and worker daemons work together: those whose protocols are at most one
// version apart, so that a cluster is upgraded one process after another.
//
// The number is raised by a change after which an older peer would do wrong, not by fields that an
// older peer may ignore. Formats on disk have versions of their own.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_PROTOCOL_PROTOCOL_VERSION_H_
#define NIBBLE_COMMON_PROTOCOL_PROTOCOL_VERSION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace nibble {

// 2: epochs of stores have ids.
inline constexpr int32_t kProtocolVersion = 2;

// Whether a coordinator that speaks `own` accepts the daemon, which reports `protocol` (0: before
// daemons reported one, the same as 1) and `version`, its program's. FailedPrecondition, naming
// both and which is to be upgraded.
absl::Status CheckProtocol(absl::string_view worker, absl::string_view version, int32_t protocol,
                           int32_t own = kProtocolVersion);

}  // namespace nibble

#endif  // NIBBLE_COMMON_PROTOCOL_PROTOCOL_VERSION_H_
