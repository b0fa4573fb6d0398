// Settings files: `--config FILE` of a program reads a YAML map whose keys are the names of the
// program's flags; `--print-config` prints the settings in effect as such a file and ends.
//
//   listen: 10.0.0.5:7700
//   copies: 3
//   notify-allow: [hooks.example.org]
//   insecure: true
//
// A flag on the command line overrides the file; a list replaces the file's list. Problems are
// reported as those of job specs are: all at once, each with its line, the key and what is allowed.
//
// Ownership: borrows the command line during the call. Thread-safety: none.
#ifndef NIBBLE_SETTINGS_SETTINGS_FILE_H_
#define NIBBLE_SETTINGS_SETTINGS_FILE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/command_line/command_line.h"

namespace nibble {

inline constexpr size_t kMaxSettingsBytes = size_t{1} << 20;

struct SettingsRules {
  // Flags, without "--", that a file may not set, because they are meant for one start only.
  std::vector<std::string> command_line_only;
};

// As app.Parse(argc, argv, usage_exit_code), after adding --config and --print-config to it.
// Options count as given if the file sets them. Also returns `usage_exit_code` for a file that
// cannot be read or has problems, and 0 after --print-config has printed.
std::optional<int> ParseWithSettings(CommandLine& app, const SettingsRules& rules, int argc,
                                     const char* const* argv, int usage_exit_code);

// The words of a command line with the same meaning as the settings in `yaml`, without those that
// `given` (words of a command line) sets. InvalidArgument lists all problems.
absl::StatusOr<std::vector<std::string>> SettingsWords(const Command& app,
                                                       const SettingsRules& rules,
                                                       std::string_view yaml,
                                                       const std::vector<std::string>& given);

// The values of all options after the parsing, as a settings file with the help as comments.
// Options without a value are listed in a comment at the end.
std::string SettingsText(const Command& app, const SettingsRules& rules);

}  // namespace nibble

#endif  // NIBBLE_SETTINGS_SETTINGS_FILE_H_
