#include "model/field_check.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace nibble {

absl::Status CheckSize(std::string_view field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(field), ": ", value, " is not in [1, ", max, "]"));
}

absl::Status CheckDivides(std::string_view field, int64_t value, std::string_view of,
                          int64_t total) {
  if (total % value == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(field), ": ", value, " does not divide ", std::string(of), ", which is ", total));
}

absl::Status CheckWidth(std::string_view field, int64_t value, std::string_view by, int64_t times) {
  if (value <= kMaxWidth / times) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": ", value, " times ",
                                                 std::string(by), ", ", times, ", is over ",
                                                 kMaxWidth));
}

absl::Status CheckReal(std::string_view field, double value, const RealBounds& bounds) {
  if (value >= bounds.least && value <= bounds.most) return absl::OkStatus();  // never NaN
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": ", value, " is not in [",
                                                 bounds.least, ", ", bounds.most, "]"));
}

}  // namespace nibble
