// The grammar of `nibble`: nouns and verbs, options that several verbs share, options that may
// stand before the verb, suggestions for mistyped words, `nibble help` and `nibble version`.
//
// Ownership: options write to variables of the caller, which outlive the parsing; see
// common/command_line/command_line.h. Thread-safety: none.
#ifndef NIBBLE_CLIENT_SHELL_COMMAND_LINE_H_
#define NIBBLE_CLIENT_SHELL_COMMAND_LINE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/command_line/command_line.h"

namespace nibble {

// "nibble 0.1.0"
std::string VersionText();

// Returns the noun of this name; adds it with this help if it does not exist. Several rooms add
// verbs to one noun.
Command NounOf(Command app, const std::string& name, const std::string& help);

// -o: `print` becomes "json" or "yaml", or keeps its value, the format for people: "table".
// `more`: further formats of the verb.
void AddOutputOption(Command verb, std::string& print, const std::vector<std::string>& more = {});
// The options of a verb that runs a trained model.
struct InferenceFlags {
  std::string from;
  std::string precision = "bf16";
  std::string device = "cpu";
  int threads = 0;
  std::string tokenizer;  // empty: the model's own
};
void AddModelOptions(Command verb, InferenceFlags& flags);

// ---- Options of verbs that call a coordinator --------------------------------------------------

// --server, --timeout, --output, and who calls.
struct RemoteFlags {
  std::string server;
  std::string token_file, tls_cert, tls_key, tls_ca;  // paths; empty: not given
  std::string timeout;                                // empty: not given
  std::string print = "table";
  std::vector<std::string> formats;  // of --output, besides table, json and yaml
};
void AddRemoteOptions(Command verb, RemoteFlags& flags);
// As above without --output, for a verb whose -o is a file.
void AddServerOptions(Command verb, RemoteFlags& flags);
// Replaces the help of --timeout: in a verb that waits, it also limits the wait.
void TimeoutEndsWait(Command verb);

// InvalidArgument, naming the source of the address (if any), unless it is host:port in one of
// gRPC's forms.
absl::Status CheckServerAddress(const std::string& source, const std::string& address);

// "30s", "5m", "1h30m", or seconds as a number. InvalidArgument states what is allowed.
absl::StatusOr<absl::Duration> ParseSeconds(const std::string& text);
// An option whose value ParseSeconds() accepts; other values are usage errors.
Option AddSecondsOption(Command verb, const std::string& name, std::string& text,
                        const std::string& help);

// ---- Words -------------------------------------------------------------------------------------

// The words of a command, without the program's name, in the order that the parser accepts: options
// of the verb that stand before it (--server, --timeout, --output) are moved behind it, and
// "nibble job help" becomes "nibble job --help".
std::vector<std::string> OrderedWords(Command app, std::vector<std::string> words);

// The error text, with the nearest existing name, if the first words are not a noun and a verb;
// unset if they are, or if help is requested.
std::optional<std::string> UnknownVerb(Command app, const std::vector<std::string>& words);

// `nibble version` and `nibble help [NOUN [VERB]]`.
void AddHelpCommands(Command app, int& exit_code);

// Parses and runs the command; returns its exit code. A usage error is one line on stderr: the
// command, the problem, and where to read more.
int RunCommandLine(CommandLine& app, int argc, char** argv, const int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SHELL_COMMAND_LINE_H_
