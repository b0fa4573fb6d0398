#include "client/shell/command_line.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/shell/output.h"
#include "common/near_name.h"
#include "common/version/build_version.h"

namespace nibble {
namespace {

constexpr size_t kMostSuggested = 3;

std::vector<std::string> Names(Command app) {
  std::vector<std::string> names;
  for (const Command& part : app.Subcommands()) names.push_back(part.Name());
  return names;
}

bool IsOption(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

// Whether `word` is one of the options that may stand before the verb; `value_follows` is set if
// its value is the next word.
bool IsVerbOption(const std::string& word, bool& value_follows) {
  for (const char* name : {"--server", "--timeout", "--output", "-o", "--token-file", "--tls-cert",
                           "--tls-key", "--tls-ca"}) {
    value_follows = word == name;
    if (value_follows || absl::StartsWith(word, absl::StrCat(name, "="))) return true;
  }
  return false;
}

// ", did you mean 'job'?", or `otherwise` if no known word is near.
std::string Nearest(const std::string& given, const std::vector<std::string>& known,
                    const std::string& otherwise) {
  const std::string near = NearestName(given, std::span<const std::string>(known));
  return near.empty() ? otherwise : absl::StrCat(", did you mean '", near, "'?");
}

// The innermost subcommand given; `command` becomes its words: "nibble job submit".
Command Reached(Command app, std::string& command) {
  Command at = app;
  command = app.Name();
  while (true) {
    const std::vector<Command> next = at.ParsedSubcommands();
    if (next.empty()) return at;
    at = next.front();
    absl::StrAppend(&command, " ", at.Name());
  }
}

std::string HelpFor(const std::string& command) {
  return absl::StrCat("'nibble help", command.substr(std::string_view("nibble").size()), "'");
}

std::optional<std::string> UnknownOption(Command verb, const std::string& command) {
  for (const std::string& word : verb.Unread()) {
    if (!IsOption(word) || word == "--") continue;
    const std::string name = word.substr(0, word.find('='));
    std::vector<std::string> known;
    for (const Option& option : verb.Options()) {
      for (const std::string& long_name : option.LongNames()) known.push_back("--" + long_name);
    }
    return absl::StrCat(
        "there is no option '", name, "'",
        Nearest(name, known, absl::StrCat("; ", HelpFor(command), " lists the options")));
  }
  return std::nullopt;
}

// The error text for a command that the parser refused.
std::string UsageProblem(Command app, const std::string& error) {
  std::string command;
  const Command verb = Reached(app, command);
  // The parser reads the value of a mistyped option as a positional: report the option first.
  if (const std::optional<std::string> unknown = UnknownOption(verb, command)) {
    return absl::StrCat(command, ": ", *unknown);
  }
  return absl::StrCat(command, ": ", error, "; ", "see ", HelpFor(command));
}

}  // namespace

Command NounOf(Command app, const std::string& name, const std::string& help) {
  if (const std::optional<Command> noun = app.FindSubcommand(name)) return *noun;
  return app.AddSubcommand(name, help).RequireSubcommand();
}

std::string VersionText() { return absl::StrCat("nibble ", BuildVersion()); }

void AddOutputOption(Command verb, std::string& print, const std::vector<std::string>& more) {
  std::vector<std::string> formats = {print, "json", "yaml"};
  formats.insert(formats.end(), more.begin(), more.end());
  const std::string& last = formats.back();
  verb.Add("-o,--output", print,
           absl::StrCat(
               "output format: ", absl::StrJoin(formats.begin(), std::prev(formats.end()), ", "),
               " or ", last))
      .OneOf(formats)
      .ShowDefault();
}

void AddModelOptions(Command verb, InferenceFlags& flags) {
  verb.Add("--from", flags.from,
           "the model: a checkpoint, such as runs/quickstart@300, or an exported directory")
      .Required();
  verb.Add("--precision", flags.precision, "precision of weights and activations")
      .OneOf({"fp32", "bf16"})
      .ShowDefault();
  verb.Add("--device", flags.device, "where the model runs: cpu, or cuda (also gpu)")
      .OneOf({"cpu", "cuda", "gpu"})
      .ShowDefault();
  verb.Add("--threads", flags.threads, "number of threads of the CPU; 0: one per processor")
      .WholeNumber(0, 4096)
      .ShowDefault();
  verb.Add("--tokenizer", flags.tokenizer,
           "tokenizer of a model that names none: bytes, a SentencePiece .model, or a "
           "tokenizer.json");
}

void AddRemoteOptions(Command verb, RemoteFlags& flags) {
  AddOutputOption(verb, flags.print, flags.formats);
  AddServerOptions(verb, flags);
}

void AddServerOptions(Command verb, RemoteFlags& flags) {
  verb.Add("--server", flags.server,
           "host:port of the coordinator; default: NIBBLE_SERVER, else the local cluster")
      .Check([](const std::string& given) {
        return std::string(CheckServerAddress("", given).message());
      });
  AddSecondsOption(
      verb, "--timeout", flags.timeout,
      "how long to retry an unreachable coordinator, such as 30s; default: 10s, or no retry if "
      "nothing listens on this machine");
  const std::string group = "Security";
  verb.Add("--token-file", flags.token_file,
           "file with the caller's token; default: NIBBLE_TOKEN, else the file NIBBLE_TOKEN_FILE")
      .Group(group);
  verb.Add("--tls-cert", flags.tls_cert,
           "PEM file of the caller's certificate; default: NIBBLE_TLS_CERT")
      .Group(group);
  verb.Add("--tls-key", flags.tls_key, "PEM file of its private key; default: NIBBLE_TLS_KEY")
      .Group(group);
  verb.Add("--tls-ca", flags.tls_ca,
           "PEM file of the authorities that sign the coordinator's certificate; default: "
           "NIBBLE_TLS_CA")
      .Group(group);
}

void TimeoutEndsWait(Command verb) {
  verb.GetOption("--timeout")
      .Describe(
          "how long to wait, and to retry an unreachable coordinator, such as 30s; default: "
          "without limit, with retries for 10s, or none if nothing listens on this machine");
}

absl::StatusOr<absl::Duration> ParseSeconds(const std::string& text) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "'; allowed: seconds as a number, or a duration such as 500ms, 30s, 1h30m"));
  }
  constexpr absl::Duration kLongest = absl::Hours(24 * 365);
  if (duration <= absl::ZeroDuration() || duration > kLongest) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "'; allowed: above 0, up to 8760h"));
  }
  return duration;
}

absl::Status CheckServerAddress(const std::string& source, const std::string& address) {
  // gRPC knows more forms of a host than a listener's; of URLs only its own, dns:///host:port.
  const size_t scheme = address.find("://");
  const bool url = scheme != std::string::npos && address.substr(0, scheme) != "dns";
  const size_t colon = address.rfind(':');
  int port = 0;
  if (!url && colon != std::string::npos && colon > 0 &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 && port <= 65535) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(source, source.empty() ? "" : ": ", "'", address,
                   "'; allowed: host:port with a port of 1 to 65535",
                   url ? absl::StrCat(", without '", address.substr(0, scheme), "://'") : ""));
}

Option AddSecondsOption(Command verb, const std::string& name, std::string& text,
                        const std::string& help) {
  return verb.Add(name, text, help).Check([](const std::string& given) {
    return std::string(ParseSeconds(given).status().message());
  });
}

std::vector<std::string> OrderedWords(Command app, std::vector<std::string> words) {
  std::vector<std::string> ordered, options;
  Command at = app;
  bool in_noun = false;
  size_t i = 0;
  for (; i < words.size() && !at.Subcommands().empty(); ++i) {
    bool value_follows = false;
    if (IsOption(words[i]) && IsVerbOption(words[i], value_follows)) {
      options.push_back(words[i]);
      if (value_follows && i + 1 < words.size()) options.push_back(words[++i]);
      continue;
    }
    ordered.push_back(words[i]);
    if (IsOption(words[i])) continue;
    const std::optional<Command> next = at.FindSubcommand(words[i]);
    if (!next) {
      if (in_noun && words[i] == "help") ordered.back() = "--help";
      ++i;
      break;
    }
    at = *next;
    in_noun = true;
  }
  ordered.insert(ordered.end(), options.begin(), options.end());
  ordered.insert(ordered.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
  return ordered;
}

std::optional<std::string> UnknownVerb(Command app, const std::vector<std::string>& words) {
  if (words.empty()) {
    return absl::StrCat("nibble: a noun is missing; the nouns are ",
                        absl::StrJoin(Names(app), ", "), "; 'nibble help' describes them");
  }
  if (IsOption(words[0])) return std::nullopt;
  const std::string& noun_word = words[0];
  const std::optional<Command> noun = app.FindSubcommand(noun_word);
  if (!noun) {
    // A verb without its noun, such as "nibble submit".
    std::vector<std::string> whole;
    for (const Command& part : app.Subcommands()) {
      if (part.FindSubcommand(noun_word)) {
        whole.push_back(absl::StrCat("'nibble ", part.Name(), " ", noun_word, "'"));
      }
    }
    if (!whole.empty()) {
      whole.resize(std::min(whole.size(), kMostSuggested));
      return absl::StrCat("nibble: '", noun_word, "' needs a noun before it, did you mean ",
                          absl::StrJoin(whole, " or "), "?");
    }
    return absl::StrCat("nibble: there is no '", noun_word, "'",
                        Nearest(noun_word, Names(app), "; 'nibble help' lists the nouns"));
  }
  if (noun->Subcommands().empty() || (words.size() > 1 && IsOption(words[1]))) return std::nullopt;
  const std::string known = absl::StrCat("; its verbs are ", absl::StrJoin(Names(*noun), ", "));
  if (words.size() == 1) return absl::StrCat("nibble ", noun_word, ": a verb is missing", known);
  if (noun->FindSubcommand(words[1])) return std::nullopt;
  return absl::StrCat("nibble ", noun_word, ": there is no verb '", words[1], "'",
                      Nearest(words[1], Names(*noun), known));
}

void AddHelpCommands(Command app, int& exit_code) {
  app.AddSubcommand("version", "Print the version").OnParsed([&exit_code] {
    std::puts(VersionText().c_str());
    exit_code = kExitDone;
  });
  const Command help = app.AddSubcommand("help", "List the nouns, or describe a noun or verb");
  const auto words = std::make_shared<std::vector<std::string>>();
  help.Add("COMMAND", *words, "a noun, and optionally one of its verbs").Expect(0, 3);
  help.Footer("Example: nibble help job submit");
  help.OnParsed([app, words, &exit_code] {
    Command at = app;
    std::string path = "nibble";
    for (const std::string& word : std::exchange(*words, {})) {
      const std::optional<Command> next = at.FindSubcommand(word);
      if (!next) {
        std::cerr << path << ": there is no '" << word << "'"
                  << Nearest(word, Names(at),
                             absl::StrCat("; ", HelpFor(path), " lists what exists"))
                  << "\n";
        exit_code = kExitUsage;
        return;
      }
      at = *next;
      absl::StrAppend(&path, " ", word);
    }
    std::cout << at.Help(path);
    exit_code = kExitDone;
  });
}

int RunCommandLine(CommandLine& app, int argc, char** argv, const int& exit_code) {
  std::vector<std::string> words = OrderedWords(app, {argv + 1, argv + argc});
  if (const std::optional<std::string> unknown = UnknownVerb(app, words)) {
    std::cerr << *unknown << "\n";
    return kExitUsage;
  }
  const absl::StatusOr<CommandLine::Outcome> parsed = app.ParseWords(std::move(words));
  if (!parsed.ok()) {
    std::cerr << UsageProblem(app, std::string(parsed.status().message())) << "\n";
    return kExitUsage;
  }
  return ExitCodeOfOutput(*parsed == CommandLine::Outcome::kHelpPrinted ? kExitDone : exit_code);
}

}  // namespace nibble
