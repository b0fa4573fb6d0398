#include "worker/corpus/expanded_file.h"

#include <fcntl.h>
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
#include "common/errno_error.h"
#include "common/files/files.h"
#include "common/status_macros.h"
#include "worker/trainer/data/mapped_file.h"

namespace nibble {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;
constexpr size_t kInputBytes = size_t{1} << 24;  // per call of zlib

enum class Compression : uint8_t { kNone, kGzip, kZstd };

using Bytes = absl::Span<const std::byte>;
using BytesSink = absl::FunctionRef<absl::Status(Bytes)>;

bool BeginsWith(Bytes bytes, std::string_view magic) {
  return bytes.size() >= magic.size() &&
         std::equal(magic.begin(), magic.end(), reinterpret_cast<const char*>(bytes.data()));
}

bool IsGzip(Bytes bytes) { return BeginsWith(bytes, "\x1f\x8b"); }

absl::StatusOr<Compression> CompressionOf(const std::string& path, Bytes bytes) {
  const bool gzip = IsGzip(bytes), zstd = BeginsWith(bytes, "\x28\xb5\x2f\xfd");
  if ((path.ends_with(".gz") && !gzip) || (path.ends_with(".zst") && !zstd)) {
    const bool named_gzip = path.ends_with(".gz");
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the name ends with ", named_gzip ? ".gz" : ".zst",
                     ", but the file does not begin as ", named_gzip ? "gzip" : "zstd", " data"));
  }
  return gzip ? Compression::kGzip : zstd ? Compression::kZstd : Compression::kNone;
}

absl::Status Damaged(const std::string& path, const char* kind, size_t at, std::string_view what) {
  return absl::DataLossError(
      absl::StrFormat("%s: %s data is damaged at byte %d of the file: %s", path, kind, at, what));
}

absl::Status ExpandGzip(const std::string& path, Bytes bytes, BytesSink sink) {
  z_stream stream = {};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": not enough memory to decompress it"));
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
      return absl::ResourceExhaustedError(
          absl::StrCat(path, ": not enough memory to decompress it"));
    }
    if (result == Z_BUF_ERROR && made == 0) {
      return Damaged(path, "gzip", at, "the file ends inside a member");
    }
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      return Damaged(path, "gzip", at, stream.msg == nullptr ? "not deflate data" : stream.msg);
    }
    NIBBLE_RETURN_IF_ERROR(sink({buffer.data(), made}));
    if (result != Z_STREAM_END) continue;
    if (at == bytes.size()) return absl::OkStatus();
    // Members may follow one another.
    if (!IsGzip(bytes.subspan(at))) {
      return Damaged(path, "gzip", at, "other data follows the last member");
    }
    (void)inflateReset(&stream);  // fails only for an uninitialised stream
  }
}

absl::Status ExpandZstd(const std::string& path, Bytes bytes, BytesSink sink) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        &ZSTD_freeDStream);
  if (stream == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": not enough memory to decompress it"));
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
      return Damaged(path, "zstd", in.pos, "the file ends inside a frame");
    }
  }
}

absl::Status Expand(const std::string& path, Compression kind, Bytes bytes, BytesSink sink) {
  return kind == Compression::kGzip ? ExpandGzip(path, bytes, sink) : ExpandZstd(path, bytes, sink);
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
  NIBBLE_ASSIGN_OR_RETURN(const Compression kind, CompressionOf(path, file.bytes()));
  if (kind == Compression::kNone) return file;
  const char* const chosen = std::getenv("TMPDIR");
  const std::string directory = chosen == nullptr || *chosen == '\0' ? "/tmp" : chosen;
  std::string name = absl::StrCat(directory, "/nibble-XXXXXX");
  const std::string temporary =
      absl::StrCat("a temporary file in ", directory, ", which TMPDIR may name");
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) return ErrnoError(errno, "making", temporary);
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };  // the mapping outlives it
  (void)unlink(name.c_str());  // a failure only leaves the file behind
  NIBBLE_RETURN_IF_ERROR(Expand(path, kind, file.bytes(),
                                [&](Bytes bytes) { return WriteAll(fd, bytes, temporary); }));
  return MappedFile::Map(fd, path);
}

absl::StatusOr<int64_t> ExpandedSize(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  NIBBLE_ASSIGN_OR_RETURN(const Compression kind, CompressionOf(path, file.bytes()));
  if (kind == Compression::kNone) return static_cast<int64_t>(file.bytes().size());
  int64_t size = 0;
  NIBBLE_RETURN_IF_ERROR(Expand(path, kind, file.bytes(), [&](Bytes bytes) {
    size += static_cast<int64_t>(bytes.size());
    return absl::OkStatus();
  }));
  return size;
}

}  // namespace nibble
