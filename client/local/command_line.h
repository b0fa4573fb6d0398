// How the words of a command are read, around CLI11: where options of the cluster may stand, what
// is said of a word that is none, `nibble help` and `nibble version`.
//
// Ownership: the app owns its subcommands and must outlive their callbacks. Thread-safety: none, as
// CLI::App.
#ifndef NIBBLE_CLIENT_LOCAL_COMMAND_LINE_H_
#define NIBBLE_CLIENT_LOCAL_COMMAND_LINE_H_

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

inline constexpr char kVersionText[] = "nibble 0.1.0";

// The command's words, without the program's, as CLI11 takes them: options that a verb has and that
// stand before it (--server, --timeout, --output) stand behind it, and "nibble job help" is
// "nibble job --help".
std::vector<std::string> OrderedWords(const CLI::App& app, std::vector<std::string> words);

// What is wrong where the first words name no noun and verb, with the nearest that there is; unset
// where they do, or where help is asked for.
std::optional<std::string> UnknownVerb(const CLI::App& app, const std::vector<std::string>& words);

// What is wrong with the command that `app` refused with `error`: the command, the problem, and
// where to read more.
std::string UsageProblem(const CLI::App& app, const CLI::ParseError& error);

// `nibble version` and `nibble help [NOUN [VERB]]`.
void AddHelpCommands(CLI::App& app, int& exit_code);

// Reads and runs the command; its exit code.
int RunCommandLine(CLI::App& app, int argc, char** argv, const int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_COMMAND_LINE_H_
