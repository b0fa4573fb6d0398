#include "settings/settings_file.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <span>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/files/files.h"
#include "common/near_name.h"
#include "common/status_macros.h"
#include "job/field_values.h"
#include "job/problems.h"
#include "job/yaml_tree.h"

namespace nibble {
namespace {

constexpr char kConfig[] = "config";
constexpr char kPrintConfig[] = "print-config";
constexpr int kMaxDepth = 4;
constexpr size_t kMaxNodes = 10'000;

// An option's name in a file; empty: it has none.
std::string NameOf(const Option& option) {
  const std::vector<std::string> names = option.LongNames();
  if (names.empty() || names[0] == "help" || names[0] == "version" || names[0] == kConfig ||
      names[0] == kPrintConfig) {
    return "";
  }
  return names[0];
}

bool IsGiven(const std::vector<std::string>& words, const std::string& name) {
  return absl::c_any_of(words, [&](const std::string& word) {
    return word == "--" + name || absl::StartsWith(word, absl::StrCat("--", name, "="));
  });
}

// The value of --config; unset if it is not given or has no value, which the parsing reports.
std::optional<std::string> FileOf(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (absl::StartsWith(words[i], "--config=")) return words[i].substr(sizeof("--config=") - 1);
    if (words[i] == "--config" && i + 1 < words.size()) return words[i + 1];
  }
  return std::nullopt;
}

bool IsHelp(const std::string& word) { return word == "--help" || word == "-h"; }

void AddWord(const std::string& name, const std::string& value, std::vector<std::string>& words) {
  // "--name=" would take the next word as its value; "--name -1" would take -1 for an option.
  if (value.empty()) {
    words.insert(words.end(), {"--" + name, ""});
  } else {
    words.push_back(absl::StrCat("--", name, "=", value));
  }
}

void ReadText(const Option& option, const std::string& name, const YamlNode& node,
              Problems& problems, std::vector<std::string>& words) {
  if (node.kind == YamlNode::Kind::kNull) {
    // Its node has the line of what follows it.
    problems.Add(name, "has no value; remove the line, or write '' for an empty text");
  } else if (node.kind != YamlNode::Kind::kScalar) {
    problems.Add(name, Shown(node) + " is not a single value", node.line);
  } else if (const std::string problem = option.Problem(node.text); !problem.empty()) {
    problems.Add(name, problem, node.line);
  } else {
    AddWord(name, node.text, words);
  }
}

// Appends the words of one option with this value.
void ReadOption(const Option& option, const std::string& name, const YamlNode& node,
                Problems& problems, std::vector<std::string>& words) {
  if (!option.TakesValue()) {
    bool value = false;
    ReadBool(node, name, value, problems);
    AddWord(name, value ? "true" : "false", words);
  } else if (option.TakesList() && node.kind == YamlNode::Kind::kList) {
    for (const YamlNode& item : node.items) ReadText(option, name, item, problems, words);
  } else {
    ReadText(option, name, node, problems, words);
  }
}

YamlNode NodeOf(const Option& option, const std::string& value) {
  if (!option.TakesValue()) return YamlNode::Plain(value == "false" ? "false" : "true");
  return option.TakesText() ? YamlNode::Text(value) : YamlNode::Plain(value);
}

int Fail(const std::string& text, int exit_code) {
  std::fprintf(stderr, "%s\n", text.c_str());
  return exit_code;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SettingsWords(const Command& app,
                                                       const SettingsRules& rules,
                                                       std::string_view yaml,
                                                       const std::vector<std::string>& given) {
  NIBBLE_ASSIGN_OR_RETURN(const YamlNode root,
                          ReadYaml(yaml, {kMaxSettingsBytes, kMaxDepth, kMaxNodes}));
  std::vector<std::string> words;
  if (root.kind == YamlNode::Kind::kNull) return words;
  if (root.kind != YamlNode::Kind::kMap) {
    return absl::InvalidArgumentError(
        Shown(root) + " is not a map of settings; write one 'NAME: VALUE' per line");
  }
  std::vector<std::string> known;
  for (const Option& option : app.Options()) {
    const std::string name = NameOf(option);
    if (!name.empty() && !absl::c_linear_search(rules.command_line_only, name)) {
      known.push_back(name);
    }
  }
  Problems problems;
  std::map<std::string, int> lines;
  for (size_t i = 0; i < root.items.size(); ++i) {
    const YamlNode::Key& key = root.keys[i];
    const std::string shown = ShownName(key.text);
    if (absl::c_linear_search(rules.command_line_only, key.text)) {
      problems.Add(shown, "is for one start: give it on the command line", key.line);
    } else if (!absl::c_linear_search(known, key.text)) {
      const std::string near = NearestName(key.text, std::span<const std::string>(known));
      problems.Add(shown,
                   near.empty()
                       ? absl::StrCat("unknown setting; known: ", absl::StrJoin(known, ", "))
                       : absl::StrCat("unknown setting, did you mean ", near, "?"),
                   key.line);
    } else if (const auto [at, added] = lines.emplace(key.text, key.line); !added) {
      problems.Add(shown, absl::StrCat("given twice, first in line ", at->second), key.line);
    } else {
      problems.SetLine(key.text, key.line);
      std::vector<std::string> own;
      ReadOption(app.GetOption("--" + key.text), key.text, root.items[i], problems, own);
      if (!IsGiven(given, key.text)) words.insert(words.end(), own.begin(), own.end());
    }
  }
  NIBBLE_RETURN_IF_ERROR(problems.ToStatus());
  return words;
}

std::string SettingsText(const Command& app, const SettingsRules& rules) {
  YamlNode map = YamlNode::Map();
  std::vector<std::string> unset;
  for (const Option& option : app.Options()) {
    const std::string name = NameOf(option);
    if (name.empty() || absl::c_linear_search(rules.command_line_only, name)) continue;
    std::vector<std::string> values = option.Values();
    if (!option.TakesValue() && values.empty()) values = {"false"};
    if (values.empty()) {
      unset.push_back(name);
      continue;
    }
    YamlNode node = NodeOf(option, values[0]);
    if (option.TakesList()) {
      node = YamlNode::List();
      for (const std::string& value : values) node.items.push_back(NodeOf(option, value));
    }
    node.comment = option.Description();
    map.Put(name, std::move(node));
  }
  std::string text = WriteYaml(map);
  if (!unset.empty()) absl::StrAppend(&text, "# Not set: ", absl::StrJoin(unset, ", "), "\n");
  return text;
}

std::optional<int> ParseWithSettings(CommandLine& app, const SettingsRules& rules, int argc,
                                     const char* const* argv, int usage_exit_code) {
  std::string file;
  bool print = false;
  app.Add("--config", file, "YAML file with settings: a map whose keys are names of these options")
      .Group("Settings");
  app.AddFlag("--print-config", print, "print the settings in effect as such a file, and end")
      .Group("Settings");
  std::vector<std::string> words(argv, argv + argc);
  const std::optional<std::string> config = FileOf(words);
  if (config.has_value() && absl::c_none_of(words, IsHelp)) {
    const absl::StatusOr<std::string> text = ReadWholeFile(*config, kMaxSettingsBytes);
    if (!text.ok()) {
      return Fail(absl::StrCat("--config: ", text.status().message()), usage_exit_code);
    }
    const auto settings = SettingsWords(app, rules, *text, words);
    if (!settings.ok()) {
      return Fail(absl::StrCat(*config, ": ", settings.status().message()), usage_exit_code);
    }
    // Before the other words, so that what follows a positional or a "--" keeps its meaning.
    words.insert(words.begin() + 1, settings->begin(), settings->end());
  }
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  if (const std::optional<int> ended =
          app.Parse(static_cast<int>(pointers.size()), pointers.data(), usage_exit_code)) {
    return ended;
  }
  if (!print) return std::nullopt;
  std::fputs(SettingsText(app, rules).c_str(), stdout);
  return 0;
}

}  // namespace nibble
