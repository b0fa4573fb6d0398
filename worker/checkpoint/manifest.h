// The manifest of a checkpoint: the job's state that is not a tensor, and where each tensor's bytes
// are stored (TensorSlice: a piece of a named global tensor), with the checksum of every chunk.
//
// Manifests are encoded into the files MANIFEST (a checkpoint) and shard-00000.seal (one shard);
// see docs/formats/checkpoint-store.md. Equal values give equal bytes.
//
// Ownership: values. Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_CHECKPOINT_MANIFEST_H_
#define NIBBLE_WORKER_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
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

// The number of elements of a tensor of this shape; InvalidArgument for a negative dimension, more
// than kMaxDimensions, or more than kMaxBytes elements. A scalar, [], has one.
absl::StatusOr<int64_t> ShapeElements(std::span<const int64_t> shape);

// InvalidArgument, naming the tensor, the field, its value and the bound.
absl::Status CheckSlice(const TensorSlice& slice);

// Size of a slice in bytes. The slice is valid.
int64_t SliceBytes(const TensorSlice& slice);

// The number of chunks of `bytes` bytes: each of `chunk_bytes`, the last of the remainder.
// `chunk_bytes` is positive.
int64_t ChunksOf(int64_t bytes, int64_t chunk_bytes);

// The job whose checkpoints a store has. `job` has 1 to kMaxBytes characters, `cluster` 0 to
// kMaxBytes, no control characters; a trainer without a cluster leaves `cluster` empty.
struct StoreIdentity {
  static constexpr int64_t kMaxBytes = 256;

  std::string cluster;
  std::string job;

  friend bool operator==(const StoreIdentity&, const StoreIdentity&) = default;
};

// job "a" of cluster "b"
std::string ToString(const StoreIdentity& identity);
absl::Status CheckIdentity(const StoreIdentity& identity);

// One slice as it was stored: its bytes in chunks, the CRC-32C of each.
struct StoredSlice {
  TensorSlice slice;
  std::vector<uint32_t> chunk_crcs;  // [ChunksOf(SliceBytes(slice), chunk_bytes)]

  friend bool operator==(const StoredSlice&, const StoredSlice&) = default;
};
// DataLoss unless the chunk's bytes have the checksum that `slice` states.
absl::Status CheckChunkCrc(const StoredSlice& slice, int64_t chunk,
                           absl::Span<const std::byte> bytes);

// A file of a shard's database when the shard was sealed. Bytes that its checksum does not cover
// are covered by the chunks' checksums.
struct StoredFile {
  std::string name;
  int64_t bytes = 0;
  int64_t checked_from = 0;  // `crc`, CRC-32C, covers bytes [checked_from, bytes)
  uint32_t crc = 0;

  friend bool operator==(const StoredFile&, const StoredFile&) = default;
};

// One rank's part of one checkpoint.
struct ShardManifest {
  static constexpr int32_t kMaxRanks = 1 << 16;

  int64_t step = 0;
  int64_t attempt = 0;
  int32_t rank = 0;
  int64_t chunk_bytes = 0;
  std::vector<StoredSlice> slices;
  std::vector<StoredFile> files;

  int64_t bytes() const;  // of the slices
  friend bool operator==(const ShardManifest&, const ShardManifest&) = default;
};

// The job's state when it takes a checkpoint. `recipe_timeline`, `spec` and `products` are opaque
// here.
struct CheckpointHeader {
  StoreIdentity identity;
  int64_t step = 0;     // updates made; training resumes with this step
  int64_t attempt = 0;  // the launch that made it, from 1: the fencing token
  int64_t data_position = 0;
  uint64_t seed = 0;
  int32_t formula_version = 0;
  int32_t world = 0;            // ranks, so also shards
  int64_t time_unix_nanos = 0;  // from the caller's clock
  std::string recipe_timeline;  // JSON
  std::string spec;
  std::string products;  // GemmEngine::Choices(); empty for engines that choose nothing

  friend bool operator==(const CheckpointHeader&, const CheckpointHeader&) = default;
};

struct Manifest {
  CheckpointHeader header;
  std::vector<ShardManifest> shards;  // [world], by rank

  int64_t bytes() const;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// The manifest of a checkpoint whose shards are all sealed. The shards may come in any order.
// InvalidArgument as CheckManifest.
absl::StatusOr<Manifest> MakeManifest(CheckpointHeader header, std::vector<ShardManifest> shards);

absl::Status CheckShard(const ShardManifest& shard);

// InvalidArgument unless every rank's shard is there once, all of one step and attempt, and the
// slices of each tensor cover it exactly, without a gap and without an overlap.
absl::Status CheckManifest(const Manifest& manifest);

// Where the elements of a tensor are stored. Slices without elements are omitted.
struct TensorEntry {
  struct Piece {
    int64_t first;
    int64_t count;
    int32_t rank;
    int32_t slice;  // in the shard of `rank`
  };
  FileDType dtype = FileDType::kF32;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  std::vector<Piece> pieces;  // by `first`
};

// Indexes tensors by name. InvalidArgument if slices of a tensor disagree, overlap or leave a gap.
// The shards are valid.
absl::StatusOr<absl::flat_hash_map<std::string, TensorEntry>> IndexTensors(
    const std::vector<ShardManifest>& shards);

inline constexpr uint32_t kManifestVersion = 2;
// Records whose header has no products are written in this version, which older programs read.
inline constexpr uint32_t kManifestVersionWithoutProducts = 1;

// The values are valid (CheckShard, CheckManifest).
std::string EncodeShard(const ShardManifest& shard);
std::string EncodeManifest(const Manifest& manifest);

// DataLoss for bytes that these functions did not write: the checksum or the content reveals any
// damage. FailedPrecondition for a newer version. The results are valid.
absl::StatusOr<ShardManifest> DecodeShard(absl::string_view bytes);
absl::StatusOr<Manifest> DecodeManifest(absl::string_view bytes);

// Parts that processes exchange before there is a manifest. Errors as above; a header is checked
// only for its form.
std::string EncodeHeader(const CheckpointHeader& header);
absl::StatusOr<CheckpointHeader> DecodeHeader(absl::string_view bytes);
std::string EncodeSlices(absl::Span<const TensorSlice> slices);
absl::StatusOr<std::vector<TensorSlice>> DecodeSlices(absl::string_view bytes);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_MANIFEST_H_
