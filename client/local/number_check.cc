#include "client/local/number_check.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

std::string From(const std::string& least, const std::string& most, bool bounded) {
  return bounded ? absl::StrCat(least, " to ", most) : absl::StrCat(least, " or more");
}

}  // namespace

CLI::Validator WholeNumber(int64_t least, int64_t most) {
  const std::string allowed =
      From(absl::StrCat(least), absl::StrCat(most), most != std::numeric_limits<int64_t>::max());
  return CLI::Validator(
      [least, most, allowed](std::string& text) {
        int64_t value = 0;
        if (absl::SimpleAtoi(text, &value) && value >= least && value <= most) return std::string();
        return absl::StrCat("'", text, "'; allowed: whole numbers, ", allowed);
      },
      allowed);
}

CLI::Validator RealNumber(double least, double most) {
  const std::string allowed = From(absl::StrCat(least), absl::StrCat(most), true);
  return CLI::Validator(
      [least, most, allowed](std::string& text) {
        double value = 0;
        if (absl::SimpleAtod(text, &value) && value >= least && value <= most) return std::string();
        return absl::StrCat("'", text, "'; allowed: numbers, ", allowed);
      },
      allowed);
}

}  // namespace nibble
