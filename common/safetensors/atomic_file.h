// A file that appears under its name complete or not at all: bytes go to a temporary file in the
// same directory, which Commit() makes durable and renames over the target.
//
// Ownership: the object owns the temporary file until Commit() succeeds, and its destructor
// removes it. A process killed in between leaves "<path>.tmp-<pid>-<n>" behind and the target as
// it was.
// Thread-safety: one thread at a time per object; different objects are independent, even for the
// same path (the last Commit() wins).

#ifndef NIBBLE_COMMON_SAFETENSORS_ATOMIC_FILE_H_
#define NIBBLE_COMMON_SAFETENSORS_ATOMIC_FILE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nibble::safetensors_internal {

class AtomicFile {
 public:
  // Creates the temporary file. FailedPrecondition when `path` exists and is not a regular file
  // (a rename would replace a device, or a link instead of what it points to); otherwise what the
  // system said, e.g. NotFound for a missing directory. Permissions follow the process's umask.
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path);

  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Appends all of `bytes`, small pieces by way of a buffer. After an error the content is
  // undefined and the object should be dropped; ResourceExhausted is a full disk.
  absl::Status Append(absl::Span<const std::byte> bytes);

  // Flushes, fsyncs, renames over the target, fsyncs the directory. On an error before the rename
  // the target is untouched. An error of the last step leaves the complete new file in place, but
  // a crash of the machine may still bring back the old one. Call once, nothing after it.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary, int fd);

  absl::Status WriteOut(absl::Span<const std::byte> bytes);

  const std::string path_;
  std::string temporary_;  // empty once renamed
  int fd_;                 // -1 once closed
  std::vector<std::byte> buffer_;
};

}  // namespace nibble::safetensors_internal

#endif  // NIBBLE_COMMON_SAFETENSORS_ATOMIC_FILE_H_
