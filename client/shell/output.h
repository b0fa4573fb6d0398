// A verb's output and exit code: text for people, JSON and YAML for programs, messages on
// stderr, exit codes.
//
// Ownership: values. Thread-safety: pure functions, except that stdout and stderr belong to the
// process.
#ifndef NIBBLE_CLIENT_SHELL_OUTPUT_H_
#define NIBBLE_CLIENT_SHELL_OUTPUT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

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

// ---- The result of a verb ----------------------------------------------------------------------

// The result of a verb that has run, in both forms; empty forms print nothing. Verbs that fail
// return a status instead.
struct Reply {
  std::string text;                // for people; ends with a newline
  std::string json;                // for programs, as JsonText() makes it
  std::vector<std::string> notes;  // lines for people on stderr, after the output
  int exit_code = kExitDone;
};

// Whether `print`, the value of --output, is a format for programs.
inline bool ForPrograms(const std::string& print) { return print == "json" || print == "yaml"; }

// Writes "nibble data verify: line" to stderr; `command` is "data verify".
void Tell(std::string_view command, std::string_view line);

// Writes to stdout, at once. An error is also reported by RunCommandLine, so that no command exits
// with 0 after some of its output was lost.
absl::Status WriteOut(std::string_view text);

// `exit_code`; kExitError, with a message on stderr, if that is kExitDone and stdout failed.
int ExitCodeOfOutput(int exit_code);

// Prints the reply on stdout in the format `print`, or the error on stderr; returns the exit code.
int Finish(std::string_view command, const std::string& print, const absl::StatusOr<Reply>& reply);

// ---- Formats -----------------------------------------------------------------------------------

// JSON indented by two spaces; ends with a newline. Bytes that are not UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& json);
// The same on one line: an element of a stream.
std::string JsonLine(const nlohmann::ordered_json& json);

// The same content as YAML 1.1 and 1.2: block style, keys in their order. Strings that YAML would
// read as another type are quoted; strings of several lines are literal blocks. Ends with a
// newline. yaml-cpp's emitter is not used: it writes the string "7" or "yes" without quotes and
// drops the line feeds at the end of a literal block.
std::string YamlOf(const nlohmann::ordered_json& value);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SHELL_OUTPUT_H_
