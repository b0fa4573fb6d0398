// A small file that is there whole or not at all, also after a crash.
//
// Thread-safety: functions of the disk; one writer per path.
#ifndef NIBBLE_WORKER_AGENT_DURABLE_FILE_H_
#define NIBBLE_WORKER_AGENT_DURABLE_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace nibble {

// Durable on return, under its name. Unavailable, naming the path and the reason.
absl::Status WriteDurably(const std::string& path, absl::string_view bytes);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_DURABLE_FILE_H_
