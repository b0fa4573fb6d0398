#include "worker/checkpoint/shard_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "common/errno_error.h"
#include "common/files/files.h"
#include "common/status_macros.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {
namespace {

bool IsTable(const std::string& name) { return absl::EndsWith(name, ".sst"); }

// The files that RocksDB reads to open a database read-only; it only writes the others (OPTIONS,
// IDENTITY, LOCK).
bool IsNeeded(const std::string& name) {
  return IsTable(name) || absl::EndsWith(name, ".log") || name == "CURRENT" ||
         absl::StartsWith(name, "MANIFEST-");
}

// The file's size, and its checksum from offset from(size) on.
template <class From>
absl::StatusOr<StoredFile> Describe(const std::string& directory, const std::string& name,
                                    From from) {
  const std::string path = absl::StrCat(directory, "/", name);
  // O_NONBLOCK so that a pipe is refused below instead of waiting here for its writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoError(errno, "opening", path);
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return ErrnoError(errno, "examining", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::DataLossError(absl::StrCat(path, " is not a regular file"));
  }
  StoredFile file = {.name = name, .bytes = info.st_size};
  file.checked_from = from(file.bytes);
  for (int64_t at = file.checked_from; at < file.bytes;) {
    std::byte buffer[16384];
    const ssize_t got = pread(fd, buffer, std::min<int64_t>(sizeof(buffer), file.bytes - at), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, "reading", path);
    if (got == 0)
      return absl::DataLossError(absl::StrCat(path, " was truncated while it was read"));
    file.crc = ExtendCrc32c(file.crc, {buffer, static_cast<size_t>(got)});
    at += got;
  }
  return file;
}

}  // namespace

absl::StatusOr<std::vector<StoredFile>> DescribeShardFiles(const std::string& directory,
                                                           DiskFaults* faults) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory));
  std::vector<StoredFile> files;
  for (const std::string& name : names) {
    if (!IsNeeded(name)) continue;
    NIBBLE_RETURN_IF_ERROR(SyncFile(absl::StrCat(directory, "/", name), faults));
    NIBBLE_ASSIGN_OR_RETURN(StoredFile file, Describe(directory, name, [&name](int64_t bytes) {
                              return IsTable(name) ? std::max<int64_t>(0, bytes - kTableEndBytes)
                                                   : 0;
                            }));
    files.push_back(std::move(file));
  }
  NIBBLE_RETURN_IF_ERROR(SyncDirectory(directory, faults));
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
      return absl::DataLossError(
          absl::StrCat(path, " has checksum 0x", absl::Hex(now->crc), " from byte ",
                       file.checked_from, "; when it was sealed it had 0x", absl::Hex(file.crc)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardManifest> ReadSeal(const std::string& directory, int32_t rank) {
  const std::string path = absl::StrCat(directory, "/", SealFileName(rank));
  NIBBLE_ASSIGN_OR_RETURN(const std::string record, ReadRecord(path));
  absl::StatusOr<ShardManifest> seal = DecodeShard(record);
  if (!seal.ok()) {
    return absl::Status(seal.status().code(),
                        absl::StrCat(path, ": ", std::string(seal.status().message())));
  }
  NIBBLE_RETURN_IF_ERROR(
      CheckShardFiles(absl::StrCat(directory, "/", ShardDirectoryName(rank)), seal->files));
  return seal;
}

absl::StatusOr<std::unique_ptr<ShardReader>> ShardReader::Open(const std::string& directory,
                                                               int32_t rank) {
  NIBBLE_ASSIGN_OR_RETURN(ShardManifest seal, ReadSeal(directory, rank));
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<ShardDb> db,
      ShardDb::OpenToRead(absl::StrCat(directory, "/", ShardDirectoryName(rank))));
  return std::unique_ptr<ShardReader>(new ShardReader(std::move(seal), std::move(db)));
}

absl::Status ShardReader::ReadChunk(size_t slice, int64_t chunk, int64_t from,
                                    absl::Span<std::byte> out) const {
  const StoredSlice& stored = manifest_.slices[slice];
  const auto fail = [&](const auto&... why) {
    return absl::DataLossError(absl::StrCat("step ", manifest_.step, ", tensor \"",
                                            stored.slice.name, "\", chunk ", chunk, " of rank ",
                                            manifest_.rank, ": ", why...));
  };
  const absl::Status status = db_->ReadChunk(
      static_cast<int32_t>(slice), chunk, [&](absl::Span<const std::byte> bytes) -> absl::Status {
        NIBBLE_RETURN_IF_ERROR(CheckChunkCrc(stored, chunk, bytes));
        if (from + static_cast<int64_t>(out.size()) > static_cast<int64_t>(bytes.size())) {
          return absl::DataLossError(absl::StrCat("it has ", bytes.size(), " bytes"));
        }
        if (!out.empty()) std::memcpy(out.data(), bytes.data() + from, out.size());
        return absl::OkStatus();
      });
  return status.ok() ? status : fail(std::string(status.message()));
}

absl::Status ShardReader::Read(int64_t from, absl::Span<std::byte> out) const {
  const int64_t all = manifest_.bytes();
  const auto count = static_cast<int64_t>(out.size());
  if (from < 0 || from > all || count > all - from) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes [", from, ", ", from, " + ", count, ") are outside ", all));
  }
  const int64_t until = from + count;
  int64_t slice_begin = 0;
  for (size_t slice = 0; slice < manifest_.slices.size() && slice_begin < until; ++slice) {
    const int64_t slice_end = slice_begin + SliceBytes(manifest_.slices[slice].slice);
    int64_t at = std::max(from, slice_begin);
    while (at < std::min(until, slice_end)) {
      const int64_t chunk = (at - slice_begin) / manifest_.chunk_bytes;
      const int64_t chunk_begin = slice_begin + chunk * manifest_.chunk_bytes;
      const int64_t end = std::min({until, slice_end, chunk_begin + manifest_.chunk_bytes});
      NIBBLE_RETURN_IF_ERROR(
          ReadChunk(slice, chunk, at - chunk_begin,
                    out.subspan(static_cast<size_t>(at - from), static_cast<size_t>(end - at))));
      at = end;
    }
    slice_begin = slice_end;
  }
  return absl::OkStatus();
}

absl::Status ShardReader::Verify(int64_t& chunks) const {
  chunks = 0;
  for (size_t slice = 0; slice < manifest_.slices.size(); ++slice) {
    for (size_t chunk = 0; chunk < manifest_.slices[slice].chunk_crcs.size(); ++chunk) {
      ++chunks;
      NIBBLE_RETURN_IF_ERROR(ReadChunk(slice, static_cast<int64_t>(chunk), 0, {}));
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble
