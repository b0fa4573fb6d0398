#include "client/local/finish.h"

#include <cstdio>

#include "absl/strings/str_format.h"
#include "client/local/exit_code.h"

namespace nibble {

void Tell(std::string_view command, std::string_view line) {
  absl::FPrintF(stderr, "nibble %s: %s\n", command, line);
}

int Finish(std::string_view command, const absl::StatusOr<std::string>& text) {
  if (text.ok()) {
    std::fwrite(text->data(), 1, text->size(), stdout);
  } else {
    Tell(command, std::string(text.status().message()));
  }
  return ExitCodeOf(text.status());
}

}  // namespace nibble
