#include "worker/trainer/comm/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

// Shared file systems do not report changes of other machines, so a reader looks again.
constexpr auto kLookAgain = std::chrono::milliseconds(2);
// A file name holds 255 bytes and an escaped byte takes three.
constexpr size_t kMaxNameBytes = 240;

absl::Status WriteAll(int fd, std::string_view value, const std::string& path) {
  while (!value.empty()) {
    const ssize_t written = write(fd, value.data(), value.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return absl::ErrnoToStatus(errno, absl::StrCat("writing ", path));
    }
    value.remove_prefix(written);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileStore>> FileStore::Open(const std::string& directory) {
  struct stat info = {};
  if (stat(directory.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("rendezvous directory ", directory));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("rendezvous directory ", directory, " is not a directory"));
  }
  return std::unique_ptr<FileStore>(new FileStore(directory));
}

void FileStore::Done() {
  for (const std::string& path : written_) (void)unlink(path.c_str());
  written_.clear();
}

std::string FileStore::PathOf(std::string_view key) const {
  std::string name;
  for (const unsigned char c : key) {
    if (absl::ascii_isalnum(c)) {
      name.push_back(static_cast<char>(c));
    } else {
      absl::StrAppend(&name, "_", absl::Hex(c, absl::kZeroPad2));
    }
  }
  return absl::StrCat(directory_, "/", name);
}

absl::Status FileStore::Set(std::string_view key, std::string_view value, Deadline) {
  if (const absl::Status status = CheckRendezvousSizes(key, value); !status.ok()) return status;
  const std::string path = PathOf(key);
  if (path.size() - directory_.size() - 1 > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rendezvous key ", std::string(key), " makes a file name above ", kMaxNameBytes, " bytes"));
  }
  const std::string temporary = absl::StrCat(path, ".", getpid());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("creating ", temporary));
  const absl::Cleanup remove_temporary = [&] { (void)unlink(temporary.c_str()); };
  absl::Status status = WriteAll(fd, value, temporary);
  if (close(fd) != 0 && status.ok()) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("closing ", temporary));
  }
  if (!status.ok()) return status;
  // A link fails where the name exists, a rename would replace it.
  if (link(temporary.c_str(), path.c_str()) != 0) {
    if (errno == EEXIST) {
      return absl::AlreadyExistsError(absl::StrCat("rendezvous key ", std::string(key),
                                                   " is already in ", directory_, " (", path, ")"));
    }
    return absl::ErrnoToStatus(errno, absl::StrCat("creating ", path));
  }
  written_.push_back(path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> FileStore::Get(std::string_view key, Deadline deadline) {
  if (const absl::Status status = CheckRendezvousSizes(key, ""); !status.ok()) return status;
  const std::string path = PathOf(key);
  int fd = -1;
  while ((fd = open(path.c_str(), O_RDONLY | O_CLOEXEC)) < 0) {
    if (errno != ENOENT && errno != EINTR) {
      return absl::ErrnoToStatus(errno, absl::StrCat("opening ", path));
    }
    const Deadline now = std::chrono::steady_clock::now();
    if (deadline <= now) {
      return absl::DeadlineExceededError(
          absl::StrCat("rendezvous key ", std::string(key), " did not come to ", directory_));
    }
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(deadline - now, kLookAgain));
  }
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  std::string value(kMaxValueBytes + 1, '\0');
  size_t size = 0;
  while (size < value.size()) {
    const ssize_t got = read(fd, value.data() + size, value.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("reading ", path));
    if (got == 0) break;
    size += got;
  }
  value.resize(size);
  if (const absl::Status status = CheckRendezvousSizes(key, value); !status.ok()) return status;
  return value;
}

}  // namespace nibble
