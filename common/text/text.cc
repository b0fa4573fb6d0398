#include "common/text/text.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace nibble {
namespace {

// The bytes of the first character; an invalid lead byte counts as a character.
size_t CharacterBytes(absl::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t bytes = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
  return std::min(bytes, text.size());
}

// U+0300 to U+036F are drawn over the previous character.
bool Combines(absl::string_view character) {
  if (character.size() != 2) return false;
  const auto lead = static_cast<unsigned char>(character[0]);
  return lead == 0xcc || (lead == 0xcd && static_cast<unsigned char>(character[1]) < 0xb0);
}

}  // namespace

std::string DurationText(double seconds) {
  constexpr double kMost = 9999.0 * 86400;
  const int64_t whole = std::llround(std::isnan(seconds) ? 0 : std::clamp(seconds, 0.0, kMost));
  const auto two = [](int64_t first, char unit, int64_t second, char lesser) {
    return absl::StrFormat("%d%c%02d%c", first, unit, second, lesser);
  };
  if (whole < 60) return absl::StrCat(whole, "s");
  if (whole < 3600) return two(whole / 60, 'm', whole % 60, 's');
  if (whole < 86400) return two(whole / 3600, 'h', whole / 60 % 60, 'm');
  return two(whole / 86400, 'd', whole / 3600 % 24, 'h');
}

std::string CountText(double value) {
  constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  if (unit == 0 && value == std::floor(value)) return absl::StrFormat("%.0f", value);
  return absl::StrFormat("%.*f%s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, kUnits[unit]);
}

std::string BytesText(int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 999.95 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, value, kUnits[unit]);
}

std::string TimeText(int64_t unix_ms) {
  if (unix_ms == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), absl::UTCTimeZone());
}

std::string AgoText(int64_t unix_ms, int64_t now_unix_ms) {
  if (unix_ms == 0) return "-";
  return absl::StrCat(DurationText(static_cast<double>(now_unix_ms - unix_ms) / 1000), " ago");
}

size_t WidthOf(absl::string_view utf8) {
  size_t width = 0;
  while (!utf8.empty()) {
    const size_t bytes = CharacterBytes(utf8);
    if (!Combines(utf8.substr(0, bytes))) ++width;
    utf8.remove_prefix(bytes);
  }
  return width;
}

std::string Fit(absl::string_view utf8, size_t columns) {
  const bool cut = WidthOf(utf8) > columns;
  if (cut && columns == 0) return "";
  size_t room = cut ? columns - 1 : columns;
  std::string out;
  while (!utf8.empty()) {
    const size_t bytes = CharacterBytes(utf8);
    const absl::string_view character = utf8.substr(0, bytes);
    if (!Combines(character)) {
      if (room == 0) break;
      --room;
    }
    const auto lead = static_cast<unsigned char>(character[0]);
    if (lead < 0x20 || lead == 0x7f) {
      out += '?';
    } else {
      absl::StrAppend(&out, character);
    }
    utf8.remove_prefix(bytes);
  }
  return cut ? absl::StrCat(out, "…") : out;
}

std::vector<std::string> Wrap(absl::string_view utf8, size_t columns, size_t indent) {
  std::vector<std::string> lines;
  // Without an indent where it would leave no column for text.
  if (indent + 1 >= columns) indent = 0;
  for (absl::string_view rest : absl::StrSplit(utf8, '\n')) {
    do {
      const size_t before = lines.empty() ? 0 : indent;
      const size_t room = std::max<size_t>(1, columns - std::min(columns, before));
      size_t end = 0,
             space = 0;  // in bytes: of the text that fits, and of the last space after a word
      bool in_text = false;
      for (size_t width = 0; end < rest.size();) {
        const size_t bytes = CharacterBytes(rest.substr(end));
        if (!Combines(rest.substr(end, bytes)) && ++width > room) break;
        if (rest[end] != ' ') in_text = true;
        if (rest[end] == ' ' && in_text) space = end;
        end += bytes;
      }
      if (end < rest.size() && rest[end] != ' ' && space > 0) end = space;
      const absl::string_view line = rest.substr(0, end);
      lines.push_back(std::string(before, ' ') + Fit(line, WidthOf(line)));
      rest.remove_prefix(end);
      while (absl::ConsumePrefix(&rest, " ")) {
      }
    } while (!rest.empty());
  }
  return lines;
}

std::string OnOneLine(absl::string_view utf8) {
  std::vector<std::string> parts;
  for (const absl::string_view line : absl::StrSplit(utf8, '\n', absl::SkipWhitespace())) {
    parts.emplace_back(absl::StripAsciiWhitespace(line));
  }
  const std::string line = absl::StrJoin(parts, " ");
  return Fit(line, WidthOf(line));
}

}  // namespace nibble
