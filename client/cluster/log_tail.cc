#include "client/cluster/log_tail.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace nibble {
namespace {

constexpr std::streamoff kMostBytes = 4096;
constexpr size_t kMostLines = 12;

}  // namespace

std::string LogTail(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "(cannot be read)";
  const std::streamoff size = file.tellg();
  const std::streamoff begin = std::max<std::streamoff>(0, size - kMostBytes);
  file.seekg(begin);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  // The first of them may be half a line.
  size_t first = begin > 0 && lines.size() > 1 ? 1 : 0;
  if (lines.size() - first > kMostLines) first = lines.size() - kMostLines;
  lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(first));
  return lines.empty() ? "(is empty)" : absl::StrJoin(lines, "\n");
}

}  // namespace nibble
