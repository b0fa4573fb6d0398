#include "client/shell/spec_input.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errno_error.h"
#include "common/status_macros.h"
#include "recipe/fields.h"

namespace nibble {
namespace {

absl::StatusOr<std::vector<FieldSetting>> Split(const std::vector<std::string>& texts,
                                                const char* name) {
  std::vector<FieldSetting> settings;
  for (const std::string& text : texts) {
    const absl::StatusOr<FieldSetting> setting = SplitFieldSetting(text);
    if (!setting.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", std::string(setting.status().message())));
    }
    for (const FieldSetting& earlier : settings) {
      if (earlier.field != setting->field) continue;
      return absl::InvalidArgumentError(absl::StrCat(name, ": '", setting->field,
                                                     "' is set twice, to ", earlier.value,
                                                     " and to ", setting->value));
    }
    settings.push_back(*setting);
  }
  return settings;
}

}  // namespace

absl::StatusOr<std::string> ReadInput(const std::string& path, size_t max_bytes) {
  if (path.empty()) return absl::InvalidArgumentError("the path of the file is empty");
  const auto close = [](std::FILE* file) { return file == stdin ? 0 : std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(
      path == "-" ? stdin : std::fopen(path.c_str(), "rb"), close);
  if (file == nullptr) return ErrnoError(errno, "cannot open", path);
  std::string text;
  std::array<char, 1 << 16> piece;
  while (text.size() <= max_bytes) {
    const size_t room = std::min(piece.size(), max_bytes + 1 - text.size());
    const size_t read = std::fread(piece.data(), 1, room, file.get());
    if (read == 0) break;
    text.append(piece.data(), read);
  }
  if (std::ferror(file.get()) != 0) return ErrnoError(errno, "cannot read", path);
  return text;
}

absl::StatusOr<std::string> ReadJobText(const std::string& path) {
  return ReadInput(path, kMaxJobBytes);
}

absl::StatusOr<JobSpec> ReadJobSpec(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadJobText(path));
  absl::StatusOr<JobSpec> spec = ParseJobSpec(text);
  if (spec.ok()) return spec;
  return absl::Status(spec.status().code(),
                      absl::StrCat(path, ": ", std::string(spec.status().message())));
}

int64_t DefaultSequence(const ModelSpec& spec) {
  constexpr int64_t kUsual = 2048;
  return spec.positions == Positions::kLearned ? std::min(kUsual, spec.max_positions) : kUsual;
}

absl::StatusOr<LayerRule> ParseLayerRule(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer: '", text, "' is not SELECTOR:FIELD=VALUE, such as 'last 4 blocks:fprop=bf16'"));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::vector<FieldSetting> settings,
                          Split(absl::StrSplit(text.substr(colon + 1), ','), "layer"));
  return LayerRule{text.substr(0, colon), std::move(settings)};
}

absl::StatusOr<Recipe> ParseRecipeChange(const std::vector<std::string>& settings,
                                         const std::vector<std::string>& rules) {
  Recipe change{.preset = ""};
  NIBBLE_ASSIGN_OR_RETURN(std::vector<FieldSetting> set, Split(settings, "set"));
  change.set = std::move(set);
  for (const std::string& text : rules) {
    NIBBLE_ASSIGN_OR_RETURN(LayerRule rule, ParseLayerRule(text));
    change.layers.push_back(std::move(rule));
  }
  return change;
}

}  // namespace nibble
