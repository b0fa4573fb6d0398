#include "client/remote/enum_words.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace nibble {
std::string WordOf(const google::protobuf::EnumDescriptor& type, int value) {
  const google::protobuf::EnumValueDescriptor* const named = type.FindValueByNumber(value);
  if (named == nullptr) return "";
  // Value 0 is JOB_STATE_UNSPECIFIED.
  const absl::string_view prefix = absl::StripSuffix(type.value(0)->name(), "UNSPECIFIED");
  return absl::StrReplaceAll(absl::AsciiStrToLower(absl::StripPrefix(named->name(), prefix)),
                             {{"_", " "}});
}

}  // namespace nibble
