#include "worker/trainer/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/status_macros.h"

namespace nibble {

void MappedFile::Unmapper::operator()(const std::byte* data) const {
  if (borrowed) return;
  // Fails only for an address that was never mapped, which the type rules out.
  (void)munmap(const_cast<std::byte*>(data), size);
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK so that a pipe is refused below instead of waiting here for its writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("opening ", path));
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };  // the mapping outlives it
  return Map(fd, path);
}

absl::StatusOr<MappedFile> MappedFile::Map(int fd, const std::string& path) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("examining ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedFile(Mapping());
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (address == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, absl::StrFormat("mapping the %d bytes of %s", size, path));
  }
  return MappedFile(Mapping(static_cast<const std::byte*>(address), Unmapper{size, false}));
}

namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;
constexpr size_t kInputBytes = size_t{1} << 24;  // given to the library at a time

enum class Kind : uint8_t { kPlain, kGzip, kZstd };

using Bytes = absl::Span<const std::byte>;
using Sink = absl::FunctionRef<absl::Status(Bytes)>;

bool BeginsWith(Bytes bytes, std::string_view magic) {
  return bytes.size() >= magic.size() &&
         std::equal(magic.begin(), magic.end(), reinterpret_cast<const char*>(bytes.data()));
}

bool IsGzip(Bytes bytes) { return BeginsWith(bytes, "\x1f\x8b"); }

absl::StatusOr<Kind> KindOf(const std::string& path, Bytes bytes) {
  const bool gzip = IsGzip(bytes), zstd = BeginsWith(bytes, "\x28\xb5\x2f\xfd");
  if ((path.ends_with(".gz") && !gzip) || (path.ends_with(".zst") && !zstd)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": its name says ",
                                                   path.ends_with(".gz") ? "gzip" : "zstd",
                                                   ", but it does not begin so at byte 0"));
  }
  return gzip ? Kind::kGzip : zstd ? Kind::kZstd : Kind::kPlain;
}

absl::Status Damaged(const std::string& path, const char* kind, size_t at, std::string_view what) {
  return absl::DataLossError(
      absl::StrFormat("%s: %s data is damaged at byte %d of the file: %s", path, kind, at, what));
}

absl::Status ExpandGzip(const std::string& path, Bytes bytes, Sink sink) {
  z_stream stream = {};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory to expand it"));
  }
  const absl::Cleanup end = [&] { (void)inflateEnd(&stream); };
  std::vector<std::byte> buffer(kBufferBytes);
  size_t given = 0;
  while (true) {
    if (stream.avail_in == 0 && given < bytes.size()) {
      const size_t size = std::min(kInputBytes, bytes.size() - given);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data() + given));
      stream.avail_in = static_cast<uInt>(size);
      given += size;
    }
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = static_cast<uInt>(buffer.size());
    const int result = inflate(&stream, Z_NO_FLUSH);
    const size_t at = given - stream.avail_in;
    const size_t made = buffer.size() - stream.avail_out;
    if (result == Z_MEM_ERROR) {
      return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory to expand it"));
    }
    if (result == Z_BUF_ERROR && made == 0) {
      return Damaged(path, "gzip", at, "it ends before its member does");
    }
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      return Damaged(path, "gzip", at, stream.msg == nullptr ? "no deflate data" : stream.msg);
    }
    NIBBLE_RETURN_IF_ERROR(sink({buffer.data(), made}));
    if (result != Z_STREAM_END) continue;
    if (at == bytes.size()) return absl::OkStatus();
    // Members may follow one another.
    if (!IsGzip(bytes.subspan(at))) {
      return Damaged(path, "gzip", at, "something else follows its last member");
    }
    (void)inflateReset(&stream);  // fails only for a stream that was never begun
  }
}

absl::Status ExpandZstd(const std::string& path, Bytes bytes, Sink sink) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        &ZSTD_freeDStream);
  if (stream == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory to expand it"));
  }
  std::vector<std::byte> buffer(kBufferBytes);
  ZSTD_inBuffer in = {bytes.data(), bytes.size(), 0};
  while (true) {
    const size_t before = in.pos;
    ZSTD_outBuffer out = {buffer.data(), buffer.size(), 0};
    const size_t left = ZSTD_decompressStream(stream.get(), &out, &in);
    if (ZSTD_isError(left) != 0) return Damaged(path, "zstd", in.pos, ZSTD_getErrorName(left));
    NIBBLE_RETURN_IF_ERROR(sink({buffer.data(), out.pos}));
    if (left == 0 && in.pos == in.size) return absl::OkStatus();
    if (in.pos == before && out.pos == 0 && in.pos == in.size) {
      return Damaged(path, "zstd", in.pos, "it ends before its frame does");
    }
  }
}

absl::Status Expand(const std::string& path, Kind kind, Bytes bytes, Sink sink) {
  return kind == Kind::kGzip ? ExpandGzip(path, bytes, sink) : ExpandZstd(path, bytes, sink);
}

absl::Status WriteAll(int fd, const std::string& directory, Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("writing a temporary file in ", directory,
                                                     ", which TMPDIR may name"));
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view ExpandedName(std::string_view path) {
  for (const std::string_view extension : {".gz", ".zst"}) {
    if (path.ends_with(extension)) return path.substr(0, path.size() - extension.size());
  }
  return path;
}

absl::StatusOr<MappedFile> OpenExpanded(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  NIBBLE_ASSIGN_OR_RETURN(const Kind kind, KindOf(path, file.bytes()));
  if (kind == Kind::kPlain) return file;
  const char* const chosen = std::getenv("TMPDIR");
  const std::string directory = chosen == nullptr || *chosen == '\0' ? "/tmp" : chosen;
  std::string name = absl::StrCat(directory, "/nibble-XXXXXX");
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("making a temporary file ", name));
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };  // the mapping outlives it
  (void)unlink(name.c_str());  // one that stays is only a file too many
  NIBBLE_RETURN_IF_ERROR(Expand(path, kind, file.bytes(),
                                [&](Bytes bytes) { return WriteAll(fd, directory, bytes); }));
  return MappedFile::Map(fd, path);
}

absl::StatusOr<int64_t> ExpandedSize(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  NIBBLE_ASSIGN_OR_RETURN(const Kind kind, KindOf(path, file.bytes()));
  if (kind == Kind::kPlain) return static_cast<int64_t>(file.bytes().size());
  int64_t size = 0;
  NIBBLE_RETURN_IF_ERROR(Expand(path, kind, file.bytes(), [&](Bytes bytes) {
    size += static_cast<int64_t>(bytes.size());
    return absl::OkStatus();
  }));
  return size;
}

}  // namespace nibble
