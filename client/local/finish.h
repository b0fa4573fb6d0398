// How a verb ends: what it has made goes to stdout, what it has to say to stderr.
//
// Ownership: none kept. Thread-safety: stdout and stderr are the process's.
#ifndef NIBBLE_CLIENT_LOCAL_FINISH_H_
#define NIBBLE_CLIENT_LOCAL_FINISH_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nibble {

// "nibble data verify: line" on stderr; `command` is "data verify".
void Tell(std::string_view command, std::string_view line);

// Prints the text as it is, or tells the error; the exit code.
int Finish(std::string_view command, const absl::StatusOr<std::string>& text);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_FINISH_H_
