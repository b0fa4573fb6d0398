#include "worker/checkpoint/shard_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "worker/checkpoint/disk.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {
namespace {

bool IsTable(const std::string& name) { return absl::EndsWith(name, ".sst"); }

// What RocksDB reads to open a database for reading; the rest (OPTIONS, IDENTITY, LOCK) it only
// writes.
bool IsNeeded(const std::string& name) {
  return IsTable(name) || absl::EndsWith(name, ".log") || name == "CURRENT" ||
         absl::StartsWith(name, "MANIFEST-");
}

// The size, and the checksum from the place on that `from` makes of the size.
template <class From>
absl::StatusOr<StoredFile> Describe(const std::string& directory, const std::string& name,
                                    From from) {
  const std::string path = absl::StrCat(directory, "/", name);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, absl::StrCat("looking at ", path));
  StoredFile file = {.name = name, .bytes = info.st_size};
  file.checked_from = from(file.bytes);
  for (int64_t at = file.checked_from; at < file.bytes;) {
    std::byte buffer[16384];
    const ssize_t got = pread(fd, buffer, std::min<int64_t>(sizeof(buffer), file.bytes - at), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, absl::StrCat("reading ", path));
    if (got == 0) return absl::DataLossError(absl::StrCat(path, " ends while it is read"));
    file.crc = ExtendCrc32c(file.crc, {buffer, static_cast<size_t>(got)});
    at += got;
  }
  return file;
}

}  // namespace

absl::StatusOr<std::vector<StoredFile>> DescribeShardFiles(const std::string& directory,
                                                           DiskFaults* faults) {
  std::vector<StoredFile> files;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (const std::filesystem::directory_iterator end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!IsNeeded(name)) continue;
    if (absl::Status status = SyncFile(absl::StrCat(directory, "/", name), faults); !status.ok()) {
      return status;
    }
    absl::StatusOr<StoredFile> file = Describe(directory, name, [&name](int64_t bytes) {
      return IsTable(name) ? std::max<int64_t>(0, bytes - kTableEndBytes) : 0;
    });
    if (!file.ok()) return file.status();
    files.push_back(*std::move(file));
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("listing ", directory));
  if (absl::Status status = SyncDirectory(directory); !status.ok()) return status;
  std::sort(files.begin(), files.end(),
            [](const StoredFile& a, const StoredFile& b) { return a.name < b.name; });
  return files;
}

absl::Status CheckShardFiles(const std::string& directory, const std::vector<StoredFile>& files) {
  for (const StoredFile& file : files) {
    const std::string path = absl::StrCat(directory, "/", file.name);
    const absl::StatusOr<StoredFile> now = Describe(directory, file.name, [&file](int64_t bytes) {
      return bytes == file.bytes ? file.checked_from : bytes;
    });
    if (!now.ok()) return absl::DataLossError(now.status().message());
    if (now->bytes != file.bytes) {
      return absl::DataLossError(absl::StrCat(path, " has ", now->bytes,
                                              " bytes; when it was sealed it had ", file.bytes));
    }
    if (now->crc != file.crc) {
      return absl::DataLossError(absl::StrCat(path, " has checksum 0x", absl::Hex(now->crc),
                                              " from byte ", file.checked_from,
                                              "; when it was sealed it had 0x",
                                              absl::Hex(file.crc)));
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble
