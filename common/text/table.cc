#include "common/text/table.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/text/text.h"

namespace nibble {
namespace {

// Digits, with a sign, a point, an exponent, and a unit such as " GB" or "%".
bool IsNumber(absl::string_view cell) {
  if (cell.empty() || cell == "-") return true;
  const size_t digit = cell.find_first_of("0123456789");
  return digit != absl::string_view::npos && digit <= cell.find_first_not_of("+-.") &&
         cell.find_first_not_of("0123456789.-+eE %kKMGTPiB") == absl::string_view::npos;
}

}  // namespace

TextTable::TextTable(std::vector<std::string> heads) : has_heads_(!heads.empty()) {
  if (has_heads_) rows_.push_back(std::move(heads));
}

std::string TextTable::Text() const {
  if (rows_.empty()) return "";
  const size_t first = has_heads_ ? 1 : 0;
  const size_t columns = rows_[0].size();
  std::vector<size_t> widths(columns, 0);
  std::vector<bool> right(columns, rows_.size() > first);
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < columns; ++c) {
      widths[c] = std::max(widths[c], WidthOf(rows_[r][c]));
      if (r >= first && !IsNumber(rows_[r][c])) right[c] = false;
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (size_t c = 0; c < columns; ++c) {
      const std::string blanks(widths[c] - WidthOf(row[c]), ' ');
      absl::StrAppend(&line, c == 0 ? "" : "  ", right[c] ? blanks : "", row[c],
                      right[c] ? "" : blanks);
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

void TextList::Add(absl::string_view name, absl::string_view value) {
  bool first = true;
  for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(value, "\n"), '\n')) {
    const absl::string_view head = first ? name : "";
    first = false;
    const size_t used = std::min(WidthOf(head), name_columns_ - 1);
    absl::StrAppend(&text_, head, std::string(name_columns_ - used, ' '), line, "\n");
  }
}

std::string ProgressBar(int64_t done, int64_t total, size_t columns) {
  if (columns < 3) return "";
  const size_t inside = columns - 2;
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0;
  const auto full = static_cast<size_t>(share * static_cast<double>(inside));
  std::string bar = absl::StrCat("[", std::string(full, '='));
  if (full < inside) bar += '>';
  bar.resize(columns - 1, ' ');
  return bar + "]";
}

std::string Sparkline(const std::vector<double>& values, size_t columns) {
  constexpr std::array<const char*, 8> kBars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (values.empty() || columns == 0) return "";
  double least = HUGE_VAL, most = -HUGE_VAL;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  const size_t shown = std::min(values.size(), columns);
  std::string line;
  for (size_t i = 0; i < shown; ++i) {
    const double value = values[(i + 1) * values.size() / shown - 1];
    if (!std::isfinite(value)) {
      line += '!';
      continue;
    }
    const double share = most > least ? (value - least) / (most - least) : 0;
    line += kBars[static_cast<size_t>(std::lround(share * 7))];
  }
  return line;
}

}  // namespace nibble
