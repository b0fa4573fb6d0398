// Reads .safetensors files: https://github.com/huggingface/safetensors#format
//
//   8 bytes   N, unsigned little-endian
//   N bytes   JSON: {"name": {"dtype": "BF16", "shape": [2,3], "data_offsets": [0,12]}, ...},
//             with an optional "__metadata__" object of strings, padded with spaces
//   the rest  the payload, which the tensors cover entirely and without overlap
//
// The file is untrusted: all of it is checked before any view of its data is returned, and every
// view lies inside the payload.
//
// Ownership: Open() maps the file and the object owns the mapping; Parse() borrows the caller's
// bytes, which must outlive the object. Views and TensorInfo pointers live as long as the object
// they came from, and survive its being moved.
// Thread-safety: immutable once made; const methods may be called from any thread.

#ifndef NIBBLE_COMMON_SAFETENSORS_READER_H_
#define NIBBLE_COMMON_SAFETENSORS_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/safetensors/dtype.h"

namespace nibble {

struct TensorInfo {
  std::string name;  // UTF-8; may be empty or contain any character that JSON can spell
  FileDType dtype = FileDType::kU8;
  std::vector<int64_t> shape;  // row-major; empty for a scalar, a zero dimension for no elements
  // Exactly the tensor's bytes, little-endian. Alignment is NOT promised: the format lets a tensor
  // begin at any byte, so copy elements out with memcpy rather than through a typed pointer.
  absl::Span<const std::byte> data;
};

class SafetensorsFile {
 public:
  using Metadata = std::map<std::string, std::string, std::less<>>;

  // Maps the file read-only and validates it; the payload is read from disk only when touched. A
  // file that another process truncates while it is mapped raises SIGBUS on access, so nobody may
  // write to it in place (SafetensorsWriter replaces files, which is safe).
  //
  //   InvalidArgument   the content breaks a rule; the message names path, tensor, value and bound
  //   FailedPrecondition  the path is not a regular file
  //   NotFound, PermissionDenied, ...  the system's error of opening or mapping (ErrnoError)
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  // The same over bytes in memory, which must outlive the result.
  static absl::StatusOr<SafetensorsFile> Parse(std::string_view bytes);

  SafetensorsFile(SafetensorsFile&&) = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = default;

  // All tensors in the order of their data (by begin, then end, then name), so that a pass over
  // them reads the file once from front to back.
  absl::Span<const TensorInfo> tensors() const { return tensors_; }

  // The tensor of exactly this name, or nullptr.
  const TensorInfo* Find(std::string_view name) const;

  // The strings of __metadata__; empty when the file has none.
  const Metadata& metadata() const { return metadata_; }

 private:
  struct Unmapper {
    size_t size;  // unique_ptr value-initialises it
    void operator()(void* address) const;
  };
  using Mapping = std::unique_ptr<void, Unmapper>;

  SafetensorsFile() = default;

  Mapping mapping_;  // null after Parse()
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> by_name_;  // indices into tensors_, sorted by name
  Metadata metadata_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_SAFETENSORS_READER_H_
