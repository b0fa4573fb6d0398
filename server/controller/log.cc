#include "server/controller/log.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/controller/clock.h"

namespace nibble {

std::string LogLine(int64_t now_unix_ms, LogLevel level, absl::string_view text) {
  const char* const name = level == LogLevel::kInfo      ? "INFO"
                           : level == LogLevel::kWarning ? "WARNING"
                                                         : "ERROR";
  std::string line =
      absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMillis(now_unix_ms),
                                    absl::UTCTimeZone()),
                   " ", name, " ", text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return line;
}

void Log(LogLevel level, absl::string_view text) {
  const std::string line = LogLine(SystemClock().NowUnixMs(), level, text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace nibble
