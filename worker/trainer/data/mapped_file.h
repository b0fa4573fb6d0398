// A regular file mapped into memory read-only: pages come from disk when touched.
//
// A file that another process truncates while it is mapped raises SIGBUS on access, so nobody may
// write to it in place; replacing it by a rename is safe.
//
// Ownership: owns the mapping; views of it live as long and survive the object's being moved.
// Thread-safety: immutable.
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
  // FailedPrecondition when the path is not a regular file; otherwise what the system said about
  // opening or mapping it: NotFound, PermissionDenied, ... Messages name the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  // The same of a file that is open already and stays the caller's; `path` is for messages.
  static absl::StatusOr<MappedFile> Map(int fd, const std::string& path);

  // Bytes that lie in memory already and that the caller keeps there, in place of a file: readers
  // take them for tests.
  static MappedFile Borrow(absl::Span<const std::byte> bytes) {
    return MappedFile(Mapping(bytes.data(), Unmapper{bytes.size(), true}));
  }

  MappedFile(MappedFile&&) = default;
  MappedFile& operator=(MappedFile&&) = default;

  // Begins at a page; empty for an empty file.
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
