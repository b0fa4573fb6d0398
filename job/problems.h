// All that is wrong with a spec, so that its author learns it at once: collected by the path of the
// field ("optimizer.lr", "data.train[0].path"), told in the order of the lines.
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
  static constexpr size_t kMostTold = 10;

  // Where a field stands in the text. Fields that are nowhere are told with the line of what they
  // belong to.
  void SetLine(const std::string& path, int line) { lines_[path] = line; }

  // Whether the text has the field.
  bool IsWritten(std::string_view path) const { return lines_.contains(path); }

  // "path: problem". A line of 0 is looked up.
  void Add(std::string_view path, std::string_view problem, int line = 0);
  // What another part of the system said. The name that its message begins with is not told again
  // where the path ends with it.
  void Add(std::string_view path, const absl::Status& status);

  // Nothing is wrong with the field, what it belongs to, or what belongs to it: what it says can be
  // relied on.
  bool Sound(std::string_view path) const;
  bool empty() const { return problems_.empty(); }

  // OK, or InvalidArgument: "line 3: PATH: …" of a single problem; else their number, then a line
  // for each of the first kMostTold, then how many more there are.
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
