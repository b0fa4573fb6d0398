#include "common/near_name.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace nibble {
namespace {

constexpr size_t kShortestPrefix = 3;

size_t EditsAllowed(std::string_view known) { return std::max<size_t>(1, known.size() / 3); }

// Edits between `a` and `b`, each stretch of text edited once ("optimal string alignment").
size_t Edits(std::string_view a, std::string_view b) {
  // Three rows of the table: row i has the edits between the first i characters of `a` and every
  // prefix of `b`.
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::optional<double> NumberOf(std::string_view text) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  double number = 0;
  if (!digits || !absl::SimpleAtod(absl::string_view(text.data(), text.size()), &number)) return {};
  return number;
}

// The known number nearest to `given`, if it is at most twice as large and at least half as large;
// of two, the smaller one. Edits of digits say nothing about numbers: 24 is two edits from 16.
std::string NearestNumber(double given, std::span<const std::string> known) {
  std::string_view nearest;
  double least = 0;
  for (const std::string& name : known) {
    const std::optional<double> number = NumberOf(name);
    if (!number.has_value() || *number > 2 * given || given > 2 * *number) continue;
    const double apart = std::abs(*number - given);
    if (!nearest.empty() && apart >= least) continue;
    nearest = name;
    least = apart;
  }
  return std::string(nearest);
}

std::string Lower(std::string_view name) {
  std::string lower(name);
  absl::AsciiStrToLower(&lower);
  return lower;
}

}  // namespace

std::string NearestName(std::string_view given, std::span<const std::string> known) {
  if (const std::optional<double> number = NumberOf(given)) return NearestNumber(*number, known);
  const std::string wanted = Lower(given);
  std::string_view nearest;
  size_t fewest = 0;
  for (const std::string& name : known) {
    const size_t allowed = EditsAllowed(name);
    // The difference in length is a lower bound of the edits, and cheap to compute.
    const size_t apart = std::max(given.size(), name.size()) - std::min(given.size(), name.size());
    if (apart > allowed) continue;
    const size_t edits = Edits(wanted, Lower(name));
    if (edits <= allowed && (nearest.empty() || edits < fewest)) {
      nearest = name;
      fewest = edits;
    }
  }
  if (!nearest.empty() || given.size() < kShortestPrefix) return std::string(nearest);
  for (const std::string& name : known) {
    if (Lower(name).starts_with(wanted)) return name;
  }
  return "";
}

}  // namespace nibble
