#include "worker/agent/own_paths.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace nibble {
namespace {

bool IsOfName(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
}

// `at`: where `directory` occurs in `text`.
bool BeginsPath(absl::string_view text, size_t at) {
  return at == 0 || !(IsOfName(text[at - 1]) || text[at - 1] == '/');
}

std::string WithoutDirectory(const std::string& directory, const std::string& text) {
  std::string made;
  size_t from = 0;
  for (size_t at = 0; (at = text.find(directory, at)) != std::string::npos;) {
    const size_t end = at + directory.size();
    const bool below = end + 1 < text.size() && text[end] == '/' && IsOfName(text[end + 1]);
    const bool itself = end == text.size() || !IsOfName(text[end]);
    if (BeginsPath(text, at) && (below || itself)) {
      made.append(text, from, at - from);
      if (!below) made.append(directory, directory.rfind('/') + 1);
      from = below ? end + 1 : end;
    }
    at = end;
  }
  return from == 0 ? text : made.append(text, from);
}

}  // namespace

OwnPaths::OwnPaths(const std::vector<std::string>& directories,
                   std::function<void(const std::string&)> log)
    : log_(std::move(log)) {
  for (std::string directory : directories) {
    while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
    if (directory.size() > 1 && directory.front() == '/') directories_.push_back(directory);
  }
  std::sort(directories_.begin(), directories_.end(),
            [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
}

std::string OwnPaths::Hide(const std::string& text) {
  std::string hidden = text;
  for (const std::string& directory : directories_) hidden = WithoutDirectory(directory, hidden);
  if (hidden == text || !log_) return hidden;
  {
    const MutexLock lock(&mutex_);
    if (std::find(logged_.begin(), logged_.end(), text) != logged_.end()) return hidden;
    logged_.push_back(text);
    if (logged_.size() > kRemembered) logged_.pop_front();
  }
  log_(text);
  return hidden;
}

}  // namespace nibble
