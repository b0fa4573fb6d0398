// Log lines on stderr: "2026-05-01T10:00:00.000Z WARNING text". Secrets and whole requests are
// never logged.
//
// Thread-safety: each line is written atomically, from any thread.
#ifndef NIBBLE_SERVER_CONTROLLER_LOG_H_
#define NIBBLE_SERVER_CONTROLLER_LOG_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace nibble {

enum class LogLevel : uint8_t { kInfo, kWarning, kError };

// Without a newline. Control characters in the text become blanks.
std::string LogLine(int64_t now_unix_ms, LogLevel level, absl::string_view text);

void Log(LogLevel level, absl::string_view text);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_LOG_H_
