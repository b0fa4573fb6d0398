#include "client/shell/command_line.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/shell/output.h"
#include "common/near_name.h"

namespace nibble {
namespace {

constexpr size_t kMostSuggested = 3;

std::vector<std::string> Names(Command app) {
  std::vector<std::string> names;
  for (const Command& part : app.Subcommands()) names.push_back(part.Name());
  return names;
}

bool IsOption(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

// Whether `word` is an option of a verb that may stand before it; `value_follows` if its value is
// the next word.
bool IsOfVerb(const std::string& word, bool& value_follows) {
  for (const char* name : {"--server", "--timeout", "--output", "-o"}) {
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
  return absl::StrCat(command, ": ", error, "; ", HelpFor(command), " tells more");
}

}  // namespace

Command NounOf(Command app, const std::string& name, const std::string& help) {
  if (const std::optional<Command> noun = app.FindSubcommand(name)) return *noun;
  return app.AddSubcommand(name, help).RequireSubcommand();
}

void AddOutputOption(Command verb, std::string& print) {
  verb.Add("-o,--output", print, absl::StrCat("what to print: ", print, ", json or yaml"))
      .OneOf({print, "json", "yaml"})
      .ShowDefault();
}

void AddModelOptions(Command verb, std::string& from, std::string& precision, int& threads,
                     std::string& tokenizer) {
  verb.Add("--from", from,
           "a checkpoint, such as runs/quickstart@300, or an exported model's directory")
      .Required();
  verb.Add("--precision", precision, "of weights and activations")
      .OneOf({"fp32", "bf16"})
      .ShowDefault();
  verb.Add("--threads", threads, "that compute; 0: one per processor")
      .WholeNumber(0, 4096)
      .ShowDefault();
  verb.Add("--tokenizer", tokenizer,
           "of a model that does not know its own: bytes, a SentencePiece .model, a "
           "tokenizer.json");
}

std::vector<std::string> OrderedWords(Command app, std::vector<std::string> words) {
  std::vector<std::string> ordered, options;
  Command at = app;
  bool in_noun = false;
  size_t i = 0;
  for (; i < words.size() && !at.Subcommands().empty(); ++i) {
    bool value_follows = false;
    if (IsOption(words[i]) && IsOfVerb(words[i], value_follows)) {
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
  if (words.empty() || IsOption(words[0])) return std::nullopt;
  const std::string& noun_word = words[0];
  const std::optional<Command> noun = app.FindSubcommand(noun_word);
  if (!noun) {
    // A verb without its noun: "nibble submit".
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
                        Nearest(noun_word, Names(app), "; 'nibble help' lists what there is"));
  }
  if (noun->Subcommands().empty() || (words.size() > 1 && IsOption(words[1]))) return std::nullopt;
  const std::string known =
      absl::StrCat("; ", noun_word, " has ", absl::StrJoin(Names(*noun), ", "));
  if (words.size() == 1) return absl::StrCat("nibble ", noun_word, ": a verb is missing", known);
  if (noun->FindSubcommand(words[1])) return std::nullopt;
  return absl::StrCat("nibble ", noun_word, ": there is no verb '", words[1], "'",
                      Nearest(words[1], Names(*noun), known));
}

void AddHelpCommands(Command app, int& exit_code) {
  app.AddSubcommand("version", "Which version this is").OnParsed([&exit_code] {
    std::puts(kVersionText);
    exit_code = kExitDone;
  });
  const Command help = app.AddSubcommand("help", "What there is, or how to use it");
  const auto words = std::make_shared<std::vector<std::string>>();
  help.Add("COMMAND", *words, "a noun, and a verb of it").Expect(0, 2);
  help.Footer("Example: nibble help job submit");
  help.OnParsed([app, words, &exit_code] {
    Command at = app;
    std::string path = "nibble";
    for (const std::string& word : std::exchange(*words, {})) {
      const std::optional<Command> next = at.FindSubcommand(word);
      if (!next) {
        std::cerr << path << ": there is no '" << word << "'"
                  << Nearest(word, Names(at),
                             absl::StrCat("; ", HelpFor(path),
                                          " lists what "
                                          "there is"))
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
  return *parsed == CommandLine::Outcome::kHelpPrinted ? kExitDone : exit_code;
}

}  // namespace nibble
