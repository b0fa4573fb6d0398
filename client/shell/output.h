// What a verb prints and how it ends: tables for people, JSON and YAML for programs, messages on
// stderr, exit codes.
//
// Thread-safety: pure functions, except that stdout and stderr are the process's.
#ifndef NIBBLE_CLIENT_SHELL_OUTPUT_H_
#define NIBBLE_CLIENT_SHELL_OUTPUT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble {

// ---- Exit codes of nibble ----------------------------------------------------------------------

inline constexpr int kExitDone = 0;
inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitJobFailed = 100;    // the followed job failed
inline constexpr int kExitNotFinished = 101;  // the wait ended before the job finished
inline constexpr int kExitNotFound = 102;     // the named job, file or checkpoint does not exist
inline constexpr int kExitCancelled = 103;    // the followed job was cancelled

inline int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  return status.code() == absl::StatusCode::kNotFound ? kExitNotFound : kExitError;
}

// ---- The end of a verb -------------------------------------------------------------------------

// "nibble data verify: line" on stderr; `command` is "data verify".
void Tell(std::string_view command, std::string_view line);

// Prints the text on stdout, or the error on stderr; returns the exit code.
int Finish(std::string_view command, const absl::StatusOr<std::string>& text);

// ---- Formats -----------------------------------------------------------------------------------

// Whether --output asks for a format that is made from JSON.
inline bool ForPrograms(const std::string& print) { return print == "json" || print == "yaml"; }
// Converts `text` from JSON if `print` is "yaml"; otherwise returns it unchanged.
absl::StatusOr<std::string> InFormat(const std::string& print, absl::StatusOr<std::string> text);

// JSON with an indent of two; ends with a newline. Bytes that are not UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& json);
// The same on one line, with its newline: an element of a stream.
std::string JsonLine(const nlohmann::ordered_json& json);

// The same content as YAML: block style, keys in the order of the value. Strings that YAML would
// read as another type are quoted, those of several lines are literal blocks. Ends with a newline.
std::string YamlOf(const nlohmann::ordered_json& value);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SHELL_OUTPUT_H_
