#include "client/local/output_format.h"

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/local/json_yaml.h"

namespace nibble {

void AddOutputOption(CLI::App* verb, std::string& print) {
  verb->add_option("-o,--output", print, absl::StrCat("what to print: ", print, ", json or yaml"))
      ->check(CLI::IsMember({print, std::string("json"), std::string("yaml")}))
      ->capture_default_str();
}

absl::StatusOr<std::string> InFormat(const std::string& print, absl::StatusOr<std::string> text) {
  if (!text.ok() || print != "yaml") return text;
  const auto json = nlohmann::ordered_json::parse(*text, nullptr, false);
  if (json.is_discarded()) return absl::InternalError("what was to become YAML is no JSON");
  return YamlOf(json);
}

}  // namespace nibble
