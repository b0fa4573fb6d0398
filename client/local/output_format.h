// -o: what a verb prints. Tables are for people, JSON and YAML for programs.
//
// Thread-safety: none for the option, pure functions otherwise.
#ifndef NIBBLE_CLIENT_LOCAL_OUTPUT_FORMAT_H_
#define NIBBLE_CLIENT_LOCAL_OUTPUT_FORMAT_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace nibble {

// `print` becomes "json", "yaml", or stays what it is now: what people read, such as "table". It
// outlives the verb.
void AddOutputOption(CLI::App* verb, std::string& print);

// Whether JSON is to be made.
inline bool ForPrograms(const std::string& print) { return print == "json" || print == "yaml"; }
// What was made for `print`: of "yaml" `text` is JSON and becomes YAML, else it is left alone.
absl::StatusOr<std::string> InFormat(const std::string& print, absl::StatusOr<std::string> text);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_OUTPUT_FORMAT_H_
