#include "common/safetensors/reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "common/errno_error.h"
#include "common/files/truncated_files.h"
#include "common/safetensors/dtype.h"
#include "common/safetensors/header.h"
#include "common/safetensors/limits.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

using safetensors_internal::Header;
using safetensors_internal::HeaderEntry;
using safetensors_internal::kMaxHeaderBytes;
using safetensors_internal::kPrefixBytes;
using safetensors_internal::QuoteName;
using safetensors_internal::ShapeString;
using safetensors_internal::TensorBytes;

// The header's text, once its length is known to be sane.
absl::StatusOr<std::string_view> HeaderText(std::string_view file) {
  if (file.size() < kPrefixBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the file has %d bytes, fewer than the %d of its length prefix",
                        file.size(), kPrefixBytes));
  }
  const auto length = LoadLittle<uint64_t>(file.data());
  if (length > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the header claims %d bytes, above the bound of %d", length, kMaxHeaderBytes));
  }
  if (const uint64_t left = file.size() - kPrefixBytes; length > left) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the header claims %d bytes, but only %d follow the length prefix", length, left));
  }
  return file.substr(kPrefixBytes, length);
}

// One entry by itself: its range lies in the payload and has the size that its shape asks for.
absl::Status CheckRange(const HeaderEntry& entry, uint64_t payload_bytes) {
  if (entry.begin > entry.end) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor %s: data_offsets [%d,%d] end before they begin",
                        QuoteName(entry.name), entry.begin, entry.end));
  }
  if (entry.end > payload_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor %s: data_offsets [%d,%d] end after the payload's %d bytes",
                        QuoteName(entry.name), entry.begin, entry.end, payload_bytes));
  }
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(entry.name, entry.dtype, entry.shape));
  if (entry.end - entry.begin != bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensor %s: data_offsets [%d,%d] hold %d bytes, but shape %s of %s needs %d",
        QuoteName(entry.name), entry.begin, entry.end, entry.end - entry.begin,
        ShapeString(entry.shape), FileDTypeName(entry.dtype), bytes));
  }
  return absl::OkStatus();
}

// All entries together, sorted by their ranges: they cover the payload exactly once. An empty
// tensor inside another one's range counts as an overlap, as in the reference implementation.
absl::Status CheckCoverage(const std::vector<HeaderEntry>& entries, uint64_t payload_bytes) {
  uint64_t covered = 0;
  const HeaderEntry* previous = nullptr;
  for (const HeaderEntry& entry : entries) {
    if (entry.begin < covered) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %s: data_offsets [%d,%d] overlap those of tensor %s, [%d,%d]",
                          QuoteName(entry.name), entry.begin, entry.end, QuoteName(previous->name),
                          previous->begin, previous->end));
    }
    if (entry.begin > covered) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensor %s: data_offsets [%d,%d] leave a hole of %d bytes after offset %d",
          QuoteName(entry.name), entry.begin, entry.end, entry.begin - covered, covered));
    }
    covered = entry.end;
    previous = &entry;
  }
  if (covered != payload_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the payload has %d bytes, but the tensors end at offset %d%s", payload_bytes, covered,
        previous == nullptr ? "" : absl::StrCat(" with tensor ", QuoteName(previous->name))));
  }
  return absl::OkStatus();
}

}  // namespace

void SafetensorsFile::Unmapper::operator()(void* address) const {
  ForgetMapping(address);
  // Fails only for an address that was never mapped, which the type rules out.
  (void)munmap(address, size);
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(std::string_view bytes) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string_view text, HeaderText(bytes));
  NIBBLE_ASSIGN_OR_RETURN(Header header, safetensors_internal::ParseHeader(text));
  const std::string_view payload = bytes.substr(kPrefixBytes + text.size());

  std::vector<HeaderEntry>& entries = header.entries;
  for (const HeaderEntry& entry : entries) {
    NIBBLE_RETURN_IF_ERROR(CheckRange(entry, payload.size()));
  }
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });

  SafetensorsFile file;
  file.by_name_.resize(entries.size());  // kMaxTensors fits 32 bits
  std::iota(file.by_name_.begin(), file.by_name_.end(), 0u);
  std::sort(file.by_name_.begin(), file.by_name_.end(),
            [&](uint32_t a, uint32_t b) { return entries[a].name < entries[b].name; });
  // Before the coverage, since a repeated entry would be reported there as an overlap with itself.
  for (size_t i = 1; i < file.by_name_.size(); ++i) {
    const HeaderEntry& a = entries[file.by_name_[i - 1]];
    const HeaderEntry& b = entries[file.by_name_[i]];
    if (a.name == b.name) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %s occurs twice, with data_offsets [%d,%d] and [%d,%d]",
                          QuoteName(a.name), a.begin, a.end, b.begin, b.end));
    }
  }
  NIBBLE_RETURN_IF_ERROR(CheckCoverage(entries, payload.size()));

  const auto* base = reinterpret_cast<const std::byte*>(payload.data());
  file.tensors_.reserve(entries.size());
  for (HeaderEntry& entry : entries) {
    file.tensors_.push_back({.name = std::move(entry.name),
                             .dtype = entry.dtype,
                             .shape = std::move(entry.shape),
                             .data = {base + entry.begin, entry.end - entry.begin}});
  }
  file.metadata_ = std::move(header.metadata);
  return file;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  // O_NONBLOCK so that a pipe is refused below instead of waiting here for its writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoError(errno, "opening", path);
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };  // the mapping outlives it

  struct stat info = {};
  if (fstat(fd, &info) != 0) return ErrnoError(errno, "examining", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  }
  const size_t size = info.st_size;
  Mapping mapping;
  if (size > 0) {  // mmap refuses an empty file; the error of Parse() is clearer
    void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) {
      return ErrnoError(errno, absl::StrCat("mapping the ", size, " bytes of"), path);
    }
    NoteMapping(address, size, path);
    mapping = Mapping(address, Unmapper{size});
  }
  absl::StatusOr<SafetensorsFile> file =
      Parse(std::string_view(static_cast<const char*>(mapping.get()), size));
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat(path, ": ", file.status().message()));
  }
  file->mapping_ = std::move(mapping);
  return file;
}

const TensorInfo* SafetensorsFile::Find(std::string_view name) const {
  const auto it = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](uint32_t index, std::string_view wanted) { return tensors_[index].name < wanted; });
  if (it == by_name_.end() || tensors_[*it].name != name) return nullptr;
  return &tensors_[*it];
}

}  // namespace nibble
