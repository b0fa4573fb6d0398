#include "common/text/quantity.h"

#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace nibble {
namespace {

struct Quantity {
  double number;
  absl::string_view unit;
};

// Positive and finite.
std::optional<Quantity> SplitQuantity(absl::string_view text) {
  const size_t end = text.find_first_not_of("0123456789.");
  if (end == absl::string_view::npos) return std::nullopt;
  double number = 0;
  if (!absl::SimpleAtod(text.substr(0, end), &number)) return std::nullopt;
  if (!(number > 0) || !std::isfinite(number)) return std::nullopt;
  return Quantity{number, absl::StripLeadingAsciiWhitespace(text.substr(end))};
}

// Removes a prefix of the unit and returns its factor; 1 if there is none.
double TakePrefix(absl::string_view& unit, bool binary) {
  constexpr absl::string_view kLetters = "kMGTP";
  if (unit.empty()) return 1;
  const size_t power =
      absl::StartsWith(unit, "K") ? 0 : kLetters.find(unit.front());  // "KiB", but "kB"
  if (power == absl::string_view::npos) return 1;
  const bool is_binary = unit.size() > 1 && unit[1] == 'i';
  if (is_binary && !binary) return 1;
  if (unit.front() == 'K' && !is_binary) return 1;
  unit.remove_prefix(is_binary ? 2 : 1);
  return std::pow(is_binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
}

absl::Status NotA(absl::string_view text, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not ", allowed));
}

}  // namespace

absl::StatusOr<int64_t> ParseByteCount(absl::string_view text) {
  constexpr absl::string_view kAllowed = "a number of bytes, such as 141GB or 131.3GiB";
  std::optional<Quantity> quantity = SplitQuantity(text);
  if (!quantity.has_value()) return NotA(text, kAllowed);
  const double bytes = quantity->number * TakePrefix(quantity->unit, /*binary=*/true);
  if (quantity->unit != "B" || bytes < 1 || bytes > 0x1p62) return NotA(text, kAllowed);
  return static_cast<int64_t>(std::llround(bytes));
}

absl::StatusOr<double> ParseByteRate(absl::string_view text) {
  constexpr absl::string_view kAllowed = "a rate in bytes or bits, such as 350GB/s or 400Gb/s";
  std::optional<Quantity> quantity = SplitQuantity(text);
  if (!quantity.has_value()) return NotA(text, kAllowed);
  const double rate = quantity->number * TakePrefix(quantity->unit, /*binary=*/true);
  if (quantity->unit == "B/s") return rate;
  if (quantity->unit == "b/s") return rate / 8;
  return NotA(text, kAllowed);
}

absl::StatusOr<double> ParseFlopRate(absl::string_view text) {
  std::optional<Quantity> quantity = SplitQuantity(text);
  if (quantity.has_value()) {
    const double rate = quantity->number * TakePrefix(quantity->unit, /*binary=*/false);
    if (quantity->unit == "FLOP/s" || quantity->unit == "FLOPS") return rate;
  }
  return NotA(text, "a rate of operations, such as 540TFLOP/s");
}

}  // namespace nibble
