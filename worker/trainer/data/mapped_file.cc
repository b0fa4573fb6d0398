#include "worker/trainer/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errno_error.h"
#include "common/files/truncated_files.h"

namespace nibble {

void MappedFile::Unmapper::operator()(const std::byte* data) const {
  if (borrowed) return;
  ForgetMapping(data);
  // Fails only for an address that was never mapped, which the type rules out.
  (void)munmap(const_cast<std::byte*>(data), size);
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK so that a pipe is refused below instead of waiting here for its writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoError(errno, absl::StrCat("opening ", path));
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };  // the mapping outlives it
  return Map(fd, path);
}

absl::StatusOr<MappedFile> MappedFile::Map(int fd, const std::string& path) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return ErrnoError(errno, absl::StrCat("examining ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedFile(Mapping());
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (address == MAP_FAILED) {
    return ErrnoError(errno, absl::StrFormat("mapping the %d bytes of %s", size, path));
  }
  NoteMapping(address, size, path);
  return MappedFile(Mapping(static_cast<const std::byte*>(address), Unmapper{size, false}));
}

}  // namespace nibble
