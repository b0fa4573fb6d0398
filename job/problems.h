// Collects all problems of a spec, so that its author sees them at once: by the path of the field
// ("optimizer.lr", "data.train[0].path"), reported in the order of lines.
//
// Ownership: a value. Thread-safety: none.
#ifndef NIBBLE_JOB_PROBLEMS_H_
#define NIBBLE_JOB_PROBLEMS_H_

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace nibble {

class Problems {
 public:
  static constexpr size_t kMaxReported = 10;

  // Records the line of a field in the text. Problems of fields without a line are reported with
  // the line of the nearest enclosing section.
  void SetLine(const std::string& path, int line) { lines_[path] = line; }

  // Whether the text sets the field.
  bool IsWritten(std::string_view path) const { return lines_.contains(path); }

  // Reports "path: problem". A line of 0 is looked up.
  void Add(std::string_view path, std::string_view problem, int line = 0);
  // Adds another component's error. A name at the start of its message is dropped if the path ends
  // with it.
  void Add(std::string_view path, const absl::Status& status);

  // True if neither the field nor a section around it nor a field inside it has a problem, so that
  // its value can be used.
  bool Sound(std::string_view path) const;
  bool empty() const { return problems_.empty(); }

  // OK, or InvalidArgument: "line 3: PATH: …" for a single problem; otherwise their number, one
  // line for each of the first kMaxReported, and the number of the others.
  absl::Status ToStatus() const;

 private:
  struct Problem {
    int line;
    std::string path;
    std::string text;
  };

  int LineOf(std::string_view path) const;

  std::map<std::string, int, std::less<>> lines_;
  std::vector<Problem> problems_;
};

}  // namespace nibble

#endif  // NIBBLE_JOB_PROBLEMS_H_
