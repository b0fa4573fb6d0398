#include "worker/agent/durable_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

absl::Status DiskError(const char* doing, const std::string& path) {
  return absl::UnavailableError(absl::StrCat(doing, " ", path, ": ", std::strerror(errno)));
}

absl::Status WriteAll(int file, const std::string& path, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return DiskError("writing", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return fsync(file) == 0 ? absl::OkStatus() : DiskError("syncing", path);
}

}  // namespace

absl::Status WriteDurably(const std::string& path, absl::string_view bytes) {
  const std::string staged = path + ".new";
  const int file = open(staged.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
  if (file < 0) return DiskError("making", staged);
  absl::Status status = WriteAll(file, staged, bytes);
  close(file);
  if (status.ok() && rename(staged.c_str(), path.c_str()) != 0) {
    status = DiskError("naming", path);
  }
  if (!status.ok()) return status;
  // The name is durable once its directory is.
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  const int folder = open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_CLOEXEC);
  if (folder < 0) return DiskError("opening", directory);
  if (fsync(folder) != 0) status = DiskError("syncing", directory);
  close(folder);
  return status;
}

}  // namespace nibble
