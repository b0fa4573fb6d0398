// Writes .safetensors files (format: reader.h) atomically.
//
// Layout: tensors by descending element size, then by name, and the payload begins at a multiple
// of 64 bytes, so that every tensor is naturally aligned in the file and in a mapping of it. Equal
// input gives equal bytes, whatever the order of the Add calls.
//
// Ownership: names, shapes and metadata are copied. Tensor data is not: a borrowed span must stay
// valid and unchanged until the last Write() has returned, and so must whatever a producer uses.
// Thread-safety: none while adding; Write() is const and may run in several threads at once when
// the producers allow it.

#ifndef NIBBLE_COMMON_SAFETENSORS_WRITER_H_
#define NIBBLE_COMMON_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/safetensors/dtype.h"

namespace nibble {

class SafetensorsWriter {
 public:
  // Takes the next bytes of a tensor, in order and in pieces of any size. They are copied or
  // written before it returns.
  using Sink = absl::FunctionRef<absl::Status(absl::Span<const std::byte>)>;
  // Feeds a tensor's bytes, little-endian and row-major, to the sink. Called once by each Write(),
  // with one tensor in flight at a time, so that a large model need never be in memory at once. It
  // should stop at the sink's first error; an error of its own fails the Write().
  using Producer = std::function<absl::Status(Sink)>;

  // Adds a tensor whose bytes are borrowed, see above.
  //
  //   InvalidArgument   the name is "__metadata__" or not UTF-8, the shape is refused by the
  //                     format's bounds, or `data` has not the bytes that dtype and shape need
  //   AlreadyExists     the name was added before
  //   ResourceExhausted one tensor above the bound on their count
  // A refused call leaves the writer unchanged.
  absl::Status AddTensor(std::string_view name, FileDType dtype, absl::Span<const int64_t> shape,
                         absl::Span<const std::byte> data);

  // The same with a producer, whose byte count is checked while it writes.
  absl::Status AddStreamedTensor(std::string_view name, FileDType dtype,
                                 absl::Span<const int64_t> shape, Producer producer);

  // Sets an entry of __metadata__. InvalidArgument for text that is not UTF-8, AlreadyExists for a
  // key set before, ResourceExhausted above the bound on their count.
  absl::Status AddMetadata(std::string_view key, std::string_view value);

  // Writes to a temporary file beside `path`, makes it durable and renames it over `path`. On any
  // error the temporary file is removed and an earlier file at `path` is unchanged (but see
  // StagedFile::Publish() on its very last step).
  //
  //   InvalidArgument     the header or the payload would exceed the format's bound
  //   FailedPrecondition  `path` exists and is not a regular file
  //   OutOfRange          a producer fed too many or too few bytes
  //   NotFound, PermissionDenied, ResourceExhausted (full disk), ...  the system's (ErrnoError)
  //   any other           the error that a producer returned
  absl::Status Write(const std::string& path) const;

 private:
  struct Tensor {
    FileDType dtype;
    std::string json_shape;
    uint64_t bytes;
    Producer producer;
  };
  using NamedTensor = std::map<std::string, Tensor>::value_type;

  absl::Status Add(std::string_view name, FileDType dtype, absl::Span<const int64_t> shape,
                   uint64_t bytes, Producer producer);
  // In the file's order. The pointers live until the next Add call.
  std::vector<const NamedTensor*> FileOrder() const;
  // Length prefix and padded header.
  absl::StatusOr<std::string> Header(absl::Span<const NamedTensor* const> tensors) const;

  std::map<std::string, Tensor> tensors_;             // by name
  std::map<std::string, std::string> json_metadata_;  // by key; values quoted and escaped
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_SAFETENSORS_WRITER_H_
