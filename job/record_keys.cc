#include "job/record_keys.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/near_name.h"
#include "job/job_fields.h"

namespace nibble {
namespace {

// A field of that name in some other section.
std::string Elsewhere(std::string_view name) {
  for (const FieldDoc& doc : JobFieldDocs()) {
    if (doc.path.ends_with(absl::StrCat(".", std::string(name)))) return doc.path;
  }
  return "";
}

std::string UnknownField(std::string_view name, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(name, std::span<const std::string>(known));
  if (!nearest.empty()) return absl::StrCat("unknown field, did you mean ", nearest, "?");
  const std::string elsewhere = Elsewhere(name);
  if (!elsewhere.empty()) return absl::StrCat("unknown field here, did you mean ", elsewhere, "?");
  return absl::StrCat("unknown field; known here: ", absl::StrJoin(known, ", "));
}

}  // namespace

std::string JoinPath(std::string_view path, std::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(std::string(path), ".", std::string(name));
}

std::vector<const YamlNode*> MatchKeys(const YamlNode& node, const std::string& path,
                                       const std::vector<std::string>& names,
                                       const std::string& shorthand, Problems& problems) {
  std::vector<const YamlNode*> given(names.size(), nullptr);
  if (node.kind == YamlNode::Kind::kNull) return given;
  if (node.kind == YamlNode::Kind::kScalar && !shorthand.empty()) {
    given[std::find(names.begin(), names.end(), shorthand) - names.begin()] = &node;
    return given;
  }
  if (node.kind != YamlNode::Kind::kMap) {
    problems.Add(path.empty() ? "job" : path,
                 absl::StrCat(Shown(node), " is not a map of ", absl::StrJoin(names, ", ")));
    return {};
  }
  std::vector<int> lines(names.size(), 0);
  for (size_t i = 0; i < node.items.size(); ++i) {
    const YamlNode::Key& key = node.keys[i];
    const size_t at = std::find(names.begin(), names.end(), key.text) - names.begin();
    const std::string inner = JoinPath(path, ShownName(key.text));
    if (at == names.size()) {
      problems.Add(inner, UnknownField(key.text, names), key.line);
    } else if (given[at] != nullptr) {
      problems.Add(inner, absl::StrCat("given twice, first in line ", lines[at]), key.line);
    } else {
      given[at] = &node.items[i];
      lines[at] = key.line;
      problems.SetLine(inner, key.line);
    }
  }
  return given;
}

bool IsListOf(const YamlNode& node, const std::string& path, const Range<int64_t>& count,
              Problems& problems) {
  if (node.kind == YamlNode::Kind::kNull) return true;
  if (node.kind != YamlNode::Kind::kList) {
    problems.Add(path, absl::StrCat(Shown(node), " is not a list"));
    return false;
  }
  // Too few is for CheckCount to say, with all else that values have wrong.
  if (static_cast<int64_t>(node.items.size()) <= count.most) return true;
  CheckCount(node.items.size(), path, count, problems);
  return false;
}

}  // namespace nibble
