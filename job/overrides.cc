#include "job/overrides.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "job/field_values.h"
#include "job/job_fields.h"
#include "job/job_spec.h"
#include "job/problems.h"
#include "job/yaml_tree.h"

namespace nibble {

namespace {

constexpr YamlLimits kLimits = {kMaxJobBytes, kMaxJobDepth, kMaxJobNodes};

struct Setting {
  std::string path;
  YamlNode value;
};

absl::Status Wrong(std::string_view path, std::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(ShownName(path), ": ", std::string(problem)));
}

// Lines of a setting's value are not lines of the spec.
void ForgetLines(YamlNode& node) {
  node.line = 0;
  for (YamlNode::Key& key : node.keys) key.line = 0;
  for (YamlNode& item : node.items) ForgetLines(item);
}

absl::StatusOr<Setting> ParseSetting(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", ShownName(text), "' is not PATH=VALUE, such as training.steps=200"));
  }
  Setting setting = {.path = std::string(text.substr(0, equals)), .value = {}};
  absl::StatusOr<YamlNode> value = ReadYaml(text.substr(equals + 1), kLimits);
  if (!value.ok()) return Wrong(setting.path, std::string(value.status().message()));
  setting.value = *std::move(value);
  ForgetLines(setting.value);
  return setting;
}

// The description of a field; entries of lists have no number in `path`: "data.train[].weight".
const FieldDoc* DocOf(std::string_view path) {
  for (const FieldDoc& doc : JobFieldDocs()) {
    if (doc.path == path) return &doc;
  }
  return nullptr;
}

// Walks from the root of a spec to the field that a setting names.
class Walk {
 public:
  explicit Walk(const Setting& setting) : setting_(setting) {}

  absl::Status Run(YamlNode& root) {
    YamlNode* node = &root;
    std::string_view rest = setting_.path;
    while (!rest.empty()) {
      NIBBLE_RETURN_IF_ERROR(rest.front() == '[' ? StepIntoList(node, rest)
                                                 : StepIntoMap(node, rest));
    }
    *node = setting_.value;
    if (key_ != nullptr) key_->line = 0;
    return absl::OkStatus();
  }

 private:
  absl::Status StepIntoMap(YamlNode*& node, std::string_view& rest) {
    // The entries of a list share one description.
    std::string_view described = documented_;
    if (described.ends_with("[]")) described.remove_suffix(2);
    const FieldDoc* const doc = DocOf(described);
    const bool free_names = doc != nullptr && doc->type == "map";
    const size_t end = free_names ? rest.size() : std::min(rest.find_first_of(".["), rest.size());
    const std::string name(rest.substr(0, end));
    if (name.empty()) return Wrong(setting_.path, "a part of the path is empty");
    if (doc != nullptr) SpellOut(*doc, *node);
    if (node->kind == YamlNode::Kind::kNull) *node = YamlNode::Map();
    if (node->kind != YamlNode::Kind::kMap) {
      return Wrong(setting_.path, absl::StrCat(walked_.empty() ? "the spec" : walked_, " is ",
                                               Shown(*node), ", not a map"));
    }
    size_t at = 0;
    while (at < node->keys.size() && node->keys[at].text != name) ++at;
    if (at == node->keys.size()) node->Put(name, YamlNode());
    key_ = &node->keys[at];
    node = &node->items[at];
    walked_ = JoinPath(walked_, name);
    documented_ = JoinPath(documented_, name);
    rest.remove_prefix(end);
    if (rest.starts_with('.')) {
      rest.remove_prefix(1);
      if (rest.empty()) return Wrong(setting_.path, "a part of the path is empty");
    }
    return absl::OkStatus();
  }

  absl::Status StepIntoList(YamlNode*& node, std::string_view& rest) {
    size_t index = 0;
    const auto [stop, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), index);
    if (error != std::errc() || stop == rest.data() + rest.size() || *stop != ']') {
      return Wrong(setting_.path, "'[' must be followed by an entry's number and ']', such as [0]");
    }
    if (node->kind != YamlNode::Kind::kList || index >= node->items.size()) {
      return Wrong(setting_.path, absl::StrCat(walked_, " has ", node->items.size(),
                                               " entries; the first is [0]"));
    }
    key_ = nullptr;
    node = &node->items[index];
    absl::StrAppend(&walked_, "[", index, "]");
    documented_ += "[]";
    rest.remove_prefix(stop + 1 - rest.data());
    if (rest.starts_with('.')) rest.remove_prefix(1);
    return absl::OkStatus();
  }

  // "recipe: nvfp4" becomes "recipe: {preset: nvfp4}".
  static void SpellOut(const FieldDoc& doc, YamlNode& node) {
    if (doc.shorthand.empty() || node.kind != YamlNode::Kind::kScalar) return;
    YamlNode map = YamlNode::Map();
    const int line = node.line;
    map.Put(doc.shorthand, std::move(node)).keys.back().line = line;
    node = std::move(map);
  }

  const Setting& setting_;
  YamlNode::Key* key_ = nullptr;  // of the node reached; null: an entry of a list, or the root
  std::string walked_;            // "data.train[0]"
  std::string documented_;        // "data.train[]"
};

// One path equals the other, or is inside it.
bool Overlap(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  if (!b.starts_with(a)) return false;
  return a.size() == b.size() || b[a.size()] == '.' || b[a.size()] == '[';
}

}  // namespace

absl::StatusOr<std::string> OverrideFields(std::string_view yaml,
                                           std::span<const std::string> settings) {
  if (settings.empty()) return std::string(yaml);
  NIBBLE_ASSIGN_OR_RETURN(const YamlNode root, OverriddenTree(yaml, settings));
  return WriteYaml(root);
}

absl::StatusOr<YamlNode> OverriddenTree(std::string_view yaml,
                                        std::span<const std::string> settings) {
  NIBBLE_ASSIGN_OR_RETURN(YamlNode root, ReadYaml(yaml, kLimits));
  std::vector<std::string> seen;
  for (const std::string& text : settings) {
    NIBBLE_ASSIGN_OR_RETURN(const Setting setting, ParseSetting(text));
    for (const std::string& earlier : seen) {
      if (Overlap(earlier, setting.path)) {
        return Wrong(setting.path, absl::StrCat("an earlier setting sets ", earlier));
      }
    }
    seen.push_back(setting.path);
    NIBBLE_RETURN_IF_ERROR(Walk(setting).Run(root));
  }
  return root;
}

bool MakePathsAbsolute(const std::string& directory, JobSpec& spec) {
  bool changed = false;
  const auto resolve = [&](std::string& path) {
    if (path.empty() || path[0] == '/') return;
    path = (std::filesystem::path(directory) / path).lexically_normal().string();
    changed = true;
  };
  for (TrainingSource& source : spec.data.train) resolve(source.path);
  for (ValidationSource& source : spec.data.validation) resolve(source.path);
  resolve(spec.data.tokenizer_model);
  resolve(spec.init_from.path);
  return changed;
}

}  // namespace nibble
