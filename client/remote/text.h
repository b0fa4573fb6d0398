// Words, numbers, times and tables as people read them.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_TEXT_H_
#define NIBBLE_CLIENT_REMOTE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/worker.pb.h"

namespace nibble {

// "running", "rank failed": the name of the enum value without the common prefix.
std::string Word(v1::JobState state);
std::string Word(v1::JobGoal goal);
std::string Word(v1::AttemptOutcome outcome);
std::string Word(v1::RankPhase phase);
std::string Word(v1::CheckpointState state);
std::string Word(v1::CheckpointTaskKind kind);
std::string Word(v1::CheckpointTaskState state);
std::string Word(v1::WorkerMode mode);
std::string Word(v1::Device device);

// "59s", "2m05s", "1h02m", "3d04h"; less than 0 counts as 0.
std::string DurationText(double seconds);
// "12.3k", "9.99M"
std::string CountText(double value);
// "1.5 GB", in powers of 1000.
std::string BytesText(int64_t bytes);
// "2026-03-01 12:00:00", UTC; "-" for 0.
std::string TimeText(int64_t unix_ms);
// "2m05s ago"; "-" for 0.
std::string AgoText(int64_t unix_ms, int64_t now_unix_ms);

// Columns that a terminal gives the text: one per character, none for those that combine.
size_t WidthOf(absl::string_view utf8);
// The first `columns` columns of it, "…" at the end where something was cut; control characters,
// which could move the cursor, become '?'.
std::string Fit(absl::string_view utf8, size_t columns);

// The whole text in lines of at most `columns` columns, broken at spaces where there are any and at
// line feeds; the lines after the first begin with `indent` blanks. Control characters as in Fit().
std::vector<std::string> Wrap(absl::string_view utf8, size_t columns, size_t indent);
// The whole text in one line: line feeds and the blanks around them become one blank.
std::string OnOneLine(absl::string_view utf8);

// Columns are as wide as their cells; a column of numbers is aligned to the right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> heads) : rows_{std::move(heads)} {}
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Ends with a newline.
  std::string Text() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the first are the heads
};

// "name           value" lines, as `describe` prints them.
class TextList {
 public:
  // The lines of a value are aligned in one column.
  void Add(absl::string_view name, absl::string_view value);
  const std::string& Text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_TEXT_H_
