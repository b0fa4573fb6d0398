// Text files that may be compressed with gzip or zstd, detected from their first bytes.
//
// Thread-safety: the functions depend on nothing but the file system.
#ifndef NIBBLE_WORKER_CORPUS_EXPANDED_FILE_H_
#define NIBBLE_WORKER_CORPUS_EXPANDED_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/trainer/data/mapped_file.h"

namespace nibble {

// The path without the suffix .gz or .zst, if it has one.
std::string_view ExpandedName(std::string_view path);

// Maps a file, compressed or not. A compressed file is expanded into an unnamed temporary file in
// TMPDIR or /tmp, which the mapping keeps, so that only a buffer is in memory.
//
//   DataLoss         compressed data is damaged, truncated or followed by other data; names the
//                    file and the byte in it
//   InvalidArgument  the name ends with .gz or .zst and the content is not of that kind
//   any other        as MappedFile::Open(), or writing the temporary file failed
absl::StatusOr<MappedFile> OpenExpanded(const std::string& path);

// The expanded size in bytes; expands a compressed file to count them. Errors as OpenExpanded().
absl::StatusOr<int64_t> ExpandedSize(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CORPUS_EXPANDED_FILE_H_
