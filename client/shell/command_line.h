// How the words of `nibble` are read: nouns and verbs, options that several verbs share, where
// options of the cluster may stand, suggestions for mistyped words, `nibble help` and
// `nibble version`.
//
// Ownership: options write to variables of the caller, which outlive the parsing; see
// common/command_line/command_line.h. Thread-safety: none.
#ifndef NIBBLE_CLIENT_SHELL_COMMAND_LINE_H_
#define NIBBLE_CLIENT_SHELL_COMMAND_LINE_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/command_line/command_line.h"

namespace nibble {

inline constexpr char kVersionText[] = "nibble 0.1.0";

// The noun of this name; it is added with this help if it does not exist. Local verbs and verbs of
// a cluster share nouns.
Command NounOf(Command app, const std::string& name, const std::string& help);

// -o: `print` becomes "json", "yaml", or keeps its value, which is the format for people, such as
// "table".
void AddOutputOption(Command verb, std::string& print);
// The options of a verb that runs a trained model.
void AddModelOptions(Command verb, std::string& from, std::string& precision, int& threads,
                     std::string& tokenizer);

// Some verbs are about files on this machine or about a cluster, depending on their arguments.
// The local verb calls a TakeOver first.
struct GivenVerb {
  Command verb;
  std::string name;   // its first positional; empty: none
  std::string print;  // the value of --output
};
// Returns the exit code if it ran the command; unset: the command is about local files.
using TakeOver = std::function<std::optional<int>(const GivenVerb&)>;

inline std::optional<int> TakenOver(const TakeOver& take_over, const GivenVerb& given) {
  return take_over ? take_over(given) : std::nullopt;
}

// The words of a command, without the program's name, in the order that the parser takes: options
// of the verb that stand before it (--server, --timeout, --output) are moved behind it, and
// "nibble job help" becomes "nibble job --help".
std::vector<std::string> OrderedWords(Command app, std::vector<std::string> words);

// The error text if the first words name no noun and verb, with the nearest that exists; unset if
// they do, or if help is requested.
std::optional<std::string> UnknownVerb(Command app, const std::vector<std::string>& words);

// `nibble version` and `nibble help [NOUN [VERB]]`.
void AddHelpCommands(Command app, int& exit_code);

// Parses and runs the command; returns its exit code. Errors go to stderr: the command, the
// problem, and where to read more.
int RunCommandLine(CommandLine& app, int argc, char** argv, const int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SHELL_COMMAND_LINE_H_
