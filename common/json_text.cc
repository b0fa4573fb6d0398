#include "common/json_text.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace nibble {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kBareWords[] = {"-Infinity", "Infinity", "NaN"};

absl::Status Refuse(std::string_view name, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(name), ": ", std::string(why)));
}

// Rewrites bare words outside strings.
std::string Normalised(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside) {
      out += c;
      if (c == '\\' && i + 1 < text.size()) {
        out += text[++i];
      } else if (c == '"') {
        inside = false;
      }
      continue;
    }
    if (c == '"') inside = true;
    bool word = false;
    for (const std::string_view bare : kBareWords) {
      if (!text.substr(i).starts_with(bare)) continue;
      absl::StrAppend(&out, "{\"__float__\":\"", std::string(bare), "\"}");
      i += bare.size() - 1;
      word = true;
      break;
    }
    if (!word) out += c;
  }
  return out;
}

}  // namespace

bool NestsDeeperThan(int most, std::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {  // to the end of the string
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] == '\\') ++i;
      }
    } else if (c == '{' || c == '[') {
      if (++depth > most) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

absl::StatusOr<Json> ParseJsonObject(std::string_view name, std::string_view text) {
  if (NestsDeeperThan(kMaxJsonDepth, text)) {
    return Refuse(name, absl::StrCat("nested deeper than ", kMaxJsonDepth));
  }
  const std::string normalised = Normalised(text);
  std::vector<std::set<std::string>> open;
  std::string twice;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end && !open.empty()) open.pop_back();
    if (event == Json::parse_event_t::key && !open.empty() && twice.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open.back().insert(key).second) twice = key;
    }
    return true;
  };
  Json tree = Json::parse(normalised, watch, /*allow_exceptions=*/false);
  if (tree.is_discarded()) {
    return Refuse(name, absl::StrCat(text.size(), " bytes are not JSON"));
  }
  if (!tree.is_object()) return Refuse(name, absl::StrCat(BriefJson(tree), " is not an object"));
  if (!twice.empty()) return Refuse(name, absl::StrCat("key ", BriefText(twice), " appears twice"));
  return tree;
}

std::string BriefJson(const Json& value) {
  constexpr size_t kMax = 80;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kMax) text = text.substr(0, kMax) + "...";
  return text;
}

std::string BriefText(std::string_view text) { return BriefJson(Json(text)); }

std::string FileJson(const Json& value) {
  return value.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace nibble
