// Text files that may be compressed: gzip and zstd, told by how they begin. A compressed file is
// expanded into a temporary file without a name, in TMPDIR or /tmp, and mapped from there: memory
// holds a buffer, whatever the size.
//
// Ownership: the mapping keeps the temporary file. Thread-safety: pure functions of the file
// system.
#ifndef NIBBLE_WORKER_TRAINER_DATA_EXPANDED_FILE_H_
#define NIBBLE_WORKER_TRAINER_DATA_EXPANDED_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/trainer/data/mapped_file.h"

namespace nibble {

// The name without .gz or .zst, where it ends so.
std::string_view ExpandedName(std::string_view path);

// The file's text.
//
//   DataLoss         compressed data is damaged, cut short or followed by something else; names the
//                    file and the byte in it
//   InvalidArgument  the name ends with .gz or .zst and the content is not of that kind
//   any other        as MappedFile::Open(), or of writing the temporary file
absl::StatusOr<MappedFile> OpenExpanded(const std::string& path);

// How many bytes that has: of a compressed file it is expanded once to know. Errors as above.
absl::StatusOr<int64_t> ExpandedSize(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_EXPANDED_FILE_H_
