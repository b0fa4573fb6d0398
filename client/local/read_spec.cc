#include "client/local/read_spec.h"

#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace nibble {

absl::StatusOr<std::string> ReadJobText(const std::string& path) {
  const auto close = [](std::FILE* file) { return file == stdin ? 0 : std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(
      path == "-" ? stdin : std::fopen(path.c_str(), "rb"), close);
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  std::string text(kMaxJobBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  }
  return text;
}

absl::StatusOr<JobSpec> ReadJobSpec(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadJobText(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<JobSpec> spec = ParseJobSpec(*text);
  if (spec.ok()) return spec;
  return absl::Status(spec.status().code(),
                      absl::StrCat(path, ": ", std::string(spec.status().message())));
}

}  // namespace nibble
