// A piece of a named global tensor: what a rank puts into a checkpoint and any world takes out.
//
// Ownership: values. Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_CHECKPOINT_TENSOR_SLICE_H_
#define NIBBLE_WORKER_CHECKPOINT_TENSOR_SLICE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/safetensors/dtype.h"

namespace nibble {

struct TensorSlice {
  static constexpr int64_t kMaxName = 512;
  static constexpr int64_t kMaxDimensions = 16;
  static constexpr int64_t kMaxBytes = int64_t{1} << 50;  // of the whole tensor

  std::string name;  // 1 to kMaxName printable characters, e.g. "master/layers.0.mixer.in.weight"
  FileDType dtype = FileDType::kF32;
  std::vector<int64_t> shape;  // of the whole tensor
  // Elements [first, first + count) of the whole tensor, flat and row-major. count may be 0.
  int64_t first = 0;
  int64_t count = 0;

  friend bool operator==(const TensorSlice&, const TensorSlice&) = default;
};

// Elements of a tensor of this shape; InvalidArgument for a negative dimension, more than
// kMaxDimensions, or more than kMaxBytes elements. A scalar, [], has one.
absl::StatusOr<int64_t> ShapeElements(std::span<const int64_t> shape);

// InvalidArgument, naming the tensor, the field, its value and the bound.
absl::Status CheckSlice(const TensorSlice& slice);

// Bytes that a slice holds. The slice is valid.
int64_t SliceBytes(const TensorSlice& slice);

// Pieces that a slice's bytes are cut into: each of `chunk_bytes`, the last of what is left over.
// `chunk_bytes` is positive.
int64_t ChunksOf(int64_t bytes, int64_t chunk_bytes);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_TENSOR_SLICE_H_
