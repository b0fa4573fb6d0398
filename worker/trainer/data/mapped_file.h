// Regular files mapped into memory read-only.
//
// Access to a mapped file that another process has truncated raises SIGBUS (see truncated_files.h),
// so files must not be written to in place while they are mapped; replacing them by a rename is
// safe.
//
// Ownership: a MappedFile owns its mapping; views stay valid as long as it lives, also when it is
// moved. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_DATA_MAPPED_FILE_H_
#define NIBBLE_WORKER_TRAINER_DATA_MAPPED_FILE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nibble {

class MappedFile {
 public:
  // FailedPrecondition if the path is not a regular file; otherwise the system's error from opening
  // or mapping it: NotFound, PermissionDenied, ... Messages name the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  // Maps an open file; the caller keeps `fd`. `path` is for messages.
  static absl::StatusOr<MappedFile> Map(int fd, const std::string& path);

  // Borrows bytes in memory in place of a file, for tests of readers. They outlive the object.
  static MappedFile Borrow(absl::Span<const std::byte> bytes) {
    return MappedFile(Mapping(bytes.data(), Unmapper{bytes.size(), true}));
  }

  MappedFile(MappedFile&&) = default;
  MappedFile& operator=(MappedFile&&) = default;

  // Aligned to a page; empty for an empty file.
  absl::Span<const std::byte> bytes() const { return {data_.get(), data_.get_deleter().size}; }

 private:
  struct Unmapper {
    size_t size;  // unique_ptr value-initialises both
    bool borrowed;
    void operator()(const std::byte* data) const;
  };
  using Mapping = std::unique_ptr<const std::byte, Unmapper>;

  explicit MappedFile(Mapping data) : data_(std::move(data)) {}

  Mapping data_;  // null for an empty file, which cannot be mapped
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_MAPPED_FILE_H_
