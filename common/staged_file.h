// A file that is written under a temporary name in its own directory and appears under its name
// complete or not at all. Unlike a plain stream it can be patched before it appears, so that a
// header may hold what is known only at the end.
//
// Ownership: the object owns the temporary file until Publish() succeeds; its destructor removes
// it. A process killed in between leaves "<path>.tmp-<pid>-<n>" behind and `path` as it was.
// Thread-safety: one thread at a time per object; objects are independent, even for one path (the
// last Publish() wins).
#ifndef NIBBLE_COMMON_STAGED_FILE_H_
#define NIBBLE_COMMON_STAGED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace nibble {

class StagedFile {
 public:
  // FailedPrecondition when `path` exists and is not a regular file (a rename would replace a
  // device, or a link instead of what it points to); otherwise what the system said.
  static absl::StatusOr<std::unique_ptr<StagedFile>> Create(const std::string& path);

  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  ~StagedFile();

  const std::string& path() const { return path_; }

  // Appends by way of a buffer. After an error of any method the object is good for nothing but
  // its destruction; ResourceExhausted is a full disk.
  absl::Status Append(absl::Span<const std::byte> bytes);

  // Overwrites bytes appended before; they lie wholly inside what was appended.
  absl::Status Overwrite(int64_t offset, absl::Span<const std::byte> bytes);

  // Makes the content durable under the temporary name: what remains for Publish() is a rename.
  absl::Status Sync();

  // Sync(), rename over `path`, sync of the directory. On an error before the rename `path` is
  // untouched; after one of the last step the new file is in place, but a crash of the machine may
  // still undo that. Call once, nothing after it.
  absl::Status Publish();

 private:
  StagedFile(std::string path, std::string temporary, int fd);

  absl::Status Flush();

  const std::string path_;
  std::string temporary_;  // empty once renamed
  int fd_;                 // -1 once closed
  std::vector<std::byte> buffer_;
};

// A small file at once: created, filled and published. Durable on return.
absl::Status WriteStaged(const std::string& path, absl::string_view bytes);

}  // namespace nibble

#endif  // NIBBLE_COMMON_STAGED_FILE_H_
