#include "client/local/command_line.h"

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
#include "client/local/exit_code.h"
#include "common/near_name.h"

namespace nibble {
namespace {

constexpr size_t kMostSuggested = 3;

std::vector<const CLI::App*> Parts(const CLI::App& app) {
  return app.get_subcommands(std::function<bool(const CLI::App*)>());
}

std::vector<std::string> Names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* part : Parts(app)) names.push_back(part->get_name());
  return names;
}

const CLI::App* Find(const CLI::App& app, std::string_view name) {
  for (const CLI::App* part : Parts(app)) {
    if (part->get_name() == name) return part;
  }
  return nullptr;
}

bool IsOption(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

// "--server", and whether its value is a word of its own.
bool IsOfVerb(const std::string& word, bool& value_follows) {
  for (const char* name : {"--server", "--timeout", "--output", "-o"}) {
    value_follows = word == name;
    if (value_follows || absl::StartsWith(word, absl::StrCat(name, "="))) return true;
  }
  return false;
}

// ", did you mean 'job'?" or what there is.
std::string Nearest(const std::string& given, const std::vector<std::string>& known,
                    const std::string& otherwise) {
  const std::string near = NearestName(given, std::span<const std::string>(known));
  return near.empty() ? otherwise : absl::StrCat(", did you mean '", near, "'?");
}

// The deepest subcommand that was reached, and its words: "nibble job submit".
const CLI::App* Reached(const CLI::App& app, std::string& command) {
  const CLI::App* at = &app;
  command = app.get_name();
  while (true) {
    const std::vector<CLI::App*> next = at->get_subcommands();
    if (next.empty()) return at;
    at = next.front();
    absl::StrAppend(&command, " ", at->get_name());
  }
}

std::string HelpFor(const std::string& command) {
  return absl::StrCat("'nibble help", command.substr(std::string_view("nibble").size()), "'");
}

std::optional<std::string> UnknownOption(const CLI::App& verb, const std::string& command) {
  for (const std::string& word : verb.remaining()) {
    if (!IsOption(word) || word == "--") continue;
    const std::string name = word.substr(0, word.find('='));
    std::vector<std::string> known;
    for (const CLI::Option* option : verb.get_options(std::function<bool(const CLI::Option*)>())) {
      for (const std::string& long_name : option->get_lnames()) known.push_back("--" + long_name);
    }
    return absl::StrCat(
        "there is no option '", name, "'",
        Nearest(name, known, absl::StrCat("; ", HelpFor(command), " lists the options")));
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> OrderedWords(const CLI::App& app, std::vector<std::string> words) {
  std::vector<std::string> ordered, options;
  const CLI::App* at = &app;
  size_t i = 0;
  for (; i < words.size() && !Parts(*at).empty(); ++i) {
    bool value_follows = false;
    if (IsOption(words[i]) && IsOfVerb(words[i], value_follows)) {
      options.push_back(words[i]);
      if (value_follows && i + 1 < words.size()) options.push_back(words[++i]);
      continue;
    }
    ordered.push_back(words[i]);
    if (IsOption(words[i])) continue;
    const CLI::App* const next = Find(*at, words[i]);
    if (next == nullptr) {
      if (at != &app && words[i] == "help") ordered.back() = "--help";
      ++i;
      break;
    }
    at = next;
  }
  ordered.insert(ordered.end(), options.begin(), options.end());
  ordered.insert(ordered.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
  return ordered;
}

std::optional<std::string> UnknownVerb(const CLI::App& app, const std::vector<std::string>& words) {
  if (words.empty() || IsOption(words[0])) return std::nullopt;
  const std::string& noun_word = words[0];
  const CLI::App* const noun = Find(app, noun_word);
  if (noun == nullptr) {
    // A verb without its noun: "nibble submit".
    std::vector<std::string> whole;
    for (const CLI::App* part : Parts(app)) {
      if (Find(*part, noun_word) != nullptr) {
        whole.push_back(absl::StrCat("'nibble ", part->get_name(), " ", noun_word, "'"));
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
  if (Parts(*noun).empty() || (words.size() > 1 && IsOption(words[1]))) return std::nullopt;
  const std::string known =
      absl::StrCat("; ", noun_word, " has ", absl::StrJoin(Names(*noun), ", "));
  if (words.size() == 1) return absl::StrCat("nibble ", noun_word, ": a verb is missing", known);
  if (Find(*noun, words[1]) != nullptr) return std::nullopt;
  return absl::StrCat("nibble ", noun_word, ": there is no verb '", words[1], "'",
                      Nearest(words[1], Names(*noun), known));
}

std::string UsageProblem(const CLI::App& app, const CLI::ParseError& error) {
  std::string command;
  const CLI::App* const verb = Reached(app, command);
  // A mistyped option leaves its value where a word is due, so it is the first thing to say.
  if (const std::optional<std::string> unknown = UnknownOption(*verb, command)) {
    return absl::StrCat(command, ": ", *unknown);
  }
  return absl::StrCat(command, ": ", error.what(), "; ", HelpFor(command), " tells more");
}

void AddHelpCommands(CLI::App& app, int& exit_code) {
  app.add_subcommand("version", "Which version this is")->callback([&exit_code] {
    std::puts(kVersionText);
    exit_code = kExitDone;
  });
  CLI::App* const help = app.add_subcommand("help", "What there is, or how to use it");
  const auto words = std::make_shared<std::vector<std::string>>();
  help->add_option("COMMAND", *words, "a noun, and a verb of it")->expected(0, 2);
  help->footer("Example: nibble help job submit");
  help->callback([&app, words, &exit_code] {
    const CLI::App* at = &app;
    std::string path = "nibble";
    for (const std::string& word : std::exchange(*words, {})) {
      const CLI::App* const next = Find(*at, word);
      if (next == nullptr) {
        std::cerr << path << ": there is no '" << word << "'"
                  << Nearest(word, Names(*at),
                             absl::StrCat("; ", HelpFor(path),
                                          " lists what "
                                          "there is"))
                  << "\n";
        exit_code = kExitUsage;
        return;
      }
      at = next;
      absl::StrAppend(&path, " ", word);
    }
    // App::help would print the help of the command that was parsed: of help itself.
    std::cout << at->get_formatter()->make_help(at, path, CLI::AppFormatMode::Normal);
    exit_code = kExitDone;
  });
}

int RunCommandLine(CLI::App& app, int argc, char** argv, const int& exit_code) {
  std::vector<std::string> words = OrderedWords(app, {argv + 1, argv + argc});
  if (const std::optional<std::string> unknown = UnknownVerb(app, words)) {
    std::cerr << *unknown << "\n";
    return kExitUsage;
  }
  std::reverse(words.begin(), words.end());  // as CLI11 takes a vector
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success& success) {
    app.exit(success);
    return kExitDone;
  } catch (const CLI::ParseError& error) {
    std::cerr << UsageProblem(app, error) << "\n";
    return kExitUsage;
  }
  return exit_code;
}

}  // namespace nibble
