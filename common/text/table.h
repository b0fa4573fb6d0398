// Tables, lists, progress bars and curves as text.
//
// Ownership: values. Thread-safety: values and pure functions.
#ifndef NIBBLE_COMMON_TEXT_TABLE_H_
#define NIBBLE_COMMON_TEXT_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace nibble {

// Each column is as wide as its widest cell, and two spaces separate columns. Columns in which
// every cell is a number ("12", "4.5 %", "1.5 GB"), "-" or empty are right-aligned.
class TextTable {
 public:
  // An empty list: the table has no head; its first row determines the number of columns.
  explicit TextTable(std::vector<std::string> heads = {});
  // As many cells as there are columns.
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Ends with a newline; empty without head and rows.
  std::string Text() const;

 private:
  const bool has_heads_;
  std::vector<std::vector<std::string>> rows_;  // with the head
};

// "name           value" lines, as `describe` prints them.
class TextList {
 public:
  // Values begin `name_columns` columns from the left.
  explicit TextList(size_t name_columns = 14) : name_columns_(name_columns) {}
  // Each line of the value begins in the same column.
  void Add(absl::string_view name, absl::string_view value);
  const std::string& Text() const { return text_; }

 private:
  const size_t name_columns_;
  std::string text_;
};

// "[=====>      ]", `columns` wide; it is full only when done == total.
std::string ProgressBar(int64_t done, int64_t total, size_t columns);

// One character per value, scaled from the lowest to the highest; '!' for values that are not
// finite. More values than columns are thinned evenly, and the last one is kept.
std::string Sparkline(const std::vector<double>& values, size_t columns);

}  // namespace nibble

#endif  // NIBBLE_COMMON_TEXT_TABLE_H_
