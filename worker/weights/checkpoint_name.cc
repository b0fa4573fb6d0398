#include "worker/weights/checkpoint_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nibble {

absl::StatusOr<CheckpointName> ParseCheckpointName(std::string_view text) {
  CheckpointName name = {.directory = std::string(text)};
  const size_t at = text.rfind('@');
  if (at != std::string_view::npos && at + 1 < text.size()) {
    const std::string digits(text.substr(at + 1));
    if (std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit)) {
      int64_t step = 0;
      if (!absl::SimpleAtoi(digits, &step)) {
        return absl::InvalidArgumentError(absl::StrCat("step: ", digits, " is beyond any step"));
      }
      name.step = step;
      name.directory = std::string(text.substr(0, at));
    }
  }
  if (name.directory.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", std::string(text), "' names no directory"));
  }
  return name;
}

}  // namespace nibble
