#include "worker/interop/config_fields.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "common/json_text.h"

namespace nibble {

using Json = nlohmann::json;

const Json* ConfigFields::Find(std::string_view field) {
  asked_.emplace(field);
  const auto found = object_.find(std::string(field));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json* ConfigFields::Required(std::string_view field, bool optional) {
  const Json* value = Find(field);
  if (value == nullptr && !optional && status_.ok()) {
    status_ =
        absl::InvalidArgumentError(absl::StrCat(where_, ": ", std::string(field), " is missing"));
  }
  return value;
}

void ConfigFields::Refuse(std::string_view field, const Json& value, std::string_view allowed) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": ", std::string(field), ": ",
                                                    BriefJson(value), " ", std::string(allowed)));
}

int64_t ConfigFields::Size(std::string_view field, int64_t max, std::optional<int64_t> absent) {
  const Json* value = Required(field, absent.has_value());
  if (value == nullptr) return absent.value_or(1);
  if (value->is_number_unsigned()) {  // which may be above int64
    const auto size = value->get<uint64_t>();
    if (size >= 1 && size <= static_cast<uint64_t>(max)) return static_cast<int64_t>(size);
  } else if (value->is_number_integer()) {
    const auto size = value->get<int64_t>();
    if (size >= 1 && size <= max) return size;
  }
  Refuse(field, *value, absl::StrCat("is not an integer in [1, ", max, "]"));
  return 1;
}

double ConfigFields::Number(std::string_view field, double min, double max,
                            std::optional<double> absent) {
  const Json* value = Required(field, absent.has_value());
  if (value == nullptr) return absent.value_or(min);
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (number >= min && number <= max && std::isfinite(number)) return number;
  Refuse(field, *value, absl::StrCat("is not a number in [", min, ", ", max, "]"));
  return min;
}

bool ConfigFields::Bool(std::string_view field, bool absent) {
  const Json* value = Find(field);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  Refuse(field, *value, "is neither true nor false");
  return absent;
}

std::string ConfigFields::Text(std::string_view field, std::optional<std::string_view> absent) {
  const Json* value = Required(field, absent.has_value());
  if (value == nullptr) return std::string(absent.value_or(""));
  if (value->is_string()) return value->get<std::string>();
  Refuse(field, *value, "is not a string");
  return "";
}

void ConfigFields::Must(std::string_view field, const Json& value, const Json& absent) {
  const Json* found = Find(field);
  const Json& is = found == nullptr ? absent : *found;
  if (is == value) return;
  Refuse(field, is, absl::StrCat("is not supported; it must be ", BriefJson(value)));
}

void ConfigFields::Must(std::string_view field, const Json& value) { Must(field, value, value); }

void ConfigFields::Free(std::initializer_list<std::string_view> fields) {
  for (const std::string_view field : fields) asked_.emplace(field);
}

absl::Status ConfigFields::Finish() {
  for (const auto& [field, value] : object_.items()) {
    if (value.is_null() || asked_.contains(field)) continue;
    Refuse(BriefText(field), value, "is of a field that is not known");
  }
  return status_;
}

}  // namespace nibble
