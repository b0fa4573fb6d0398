#include "job/problems.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

// The parent path: "a.b" of "a.b.c" and of "a.b[2]"; "" of "a".
std::string_view Parent(std::string_view path) {
  const size_t end = path.find_last_of(".[");
  return end == std::string_view::npos ? std::string_view() : path.substr(0, end);
}

// Whether `inner` equals `outer` or is inside it.
bool Within(std::string_view outer, std::string_view inner) {
  if (!inner.starts_with(outer)) return false;
  return inner.size() == outer.size() || inner[outer.size()] == '.' || inner[outer.size()] == '[';
}

}  // namespace

int Problems::LineOf(std::string_view path) const {
  for (; !path.empty(); path = Parent(path)) {
    if (const auto found = lines_.find(path); found != lines_.end()) return found->second;
  }
  return 0;
}

void Problems::Add(std::string_view path, std::string_view problem, int line) {
  problems_.push_back({line > 0 ? line : LineOf(path), std::string(path), std::string(problem)});
}

void Problems::Add(std::string_view path, const absl::Status& status) {
  const std::string message(status.message());
  const size_t end = message.find(": ");
  if (end != std::string::npos) {
    const std::string_view name = std::string_view(message).substr(0, end);
    if (path == name || path.ends_with(absl::StrCat(".", std::string(name)))) {
      Add(path, std::string_view(message).substr(end + 2));
      return;
    }
  }
  Add(path, message);
}

bool Problems::Sound(std::string_view path) const {
  return std::none_of(problems_.begin(), problems_.end(), [path](const Problem& problem) {
    return Within(problem.path, path) || Within(path, problem.path);
  });
}

absl::Status Problems::ToStatus() const {
  if (problems_.empty()) return absl::OkStatus();
  std::vector<Problem> sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Problem& a, const Problem& b) { return a.line < b.line; });
  std::string message;
  const size_t reported = std::min(sorted.size(), kMaxReported);
  if (sorted.size() > 1) absl::StrAppend(&message, sorted.size(), " problems:\n  ");
  for (size_t i = 0; i < reported; ++i) {
    if (i > 0) message += "\n  ";
    if (sorted[i].line > 0) absl::StrAppend(&message, "line ", sorted[i].line, ": ");
    absl::StrAppend(&message, sorted[i].path, ": ", sorted[i].text);
  }
  if (reported < sorted.size()) {
    absl::StrAppend(&message, "\n  … and ", sorted.size() - reported, " more");
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace nibble
