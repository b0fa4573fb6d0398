// What a checkpoint says of itself: the job's state that is not a tensor, and which tensor bytes
// are where, with the checksum of every chunk.
//
// Ownership: values. Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_CHECKPOINT_MANIFEST_H_
#define NIBBLE_WORKER_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/safetensors/dtype.h"
#include "worker/checkpoint/tensor_slice.h"

namespace nibble {

// Whose checkpoints a store holds. 0 (cluster) or 1 (job) to kMaxBytes characters, no control
// characters; a trainer without a cluster leaves `cluster` empty.
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

// A file of a shard's database, as it was when the shard was sealed. What the checksum does not
// cover, the chunks' checksums do.
struct StoredFile {
  std::string name;
  int64_t bytes = 0;
  int64_t checked_from = 0;  // `crc`, CRC-32C, is of bytes [checked_from, bytes)
  uint32_t crc = 0;

  friend bool operator==(const StoredFile&, const StoredFile&) = default;
};

// What one rank stored for one checkpoint.
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

// What the job says when it takes a checkpoint. `recipe_timeline` and `spec` are not looked into.
struct CheckpointHeader {
  StoreIdentity identity;
  int64_t step = 0;     // updates made; training goes on with this step
  int64_t attempt = 0;  // the launch that made it, from 1: the fencing token
  int64_t data_position = 0;
  uint64_t seed = 0;
  int32_t formula_version = 0;
  int32_t world = 0;                // ranks, so also shards
  int64_t time_unix_nanos = 0;      // given by the caller, who has the clock
  std::string recipe_timeline;      // JSON
  std::string spec;

  friend bool operator==(const CheckpointHeader&, const CheckpointHeader&) = default;
};

struct Manifest {
  CheckpointHeader header;
  std::vector<ShardManifest> shards;  // [world], by rank

  int64_t bytes() const;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// The manifest of a checkpoint whose shards are all sealed. The shards may come in any order.
// InvalidArgument names what does not fit; see CheckManifest.
absl::StatusOr<Manifest> MakeManifest(CheckpointHeader header, std::vector<ShardManifest> shards);

absl::Status CheckShard(const ShardManifest& shard);

// InvalidArgument unless every rank's shard is there once, all of one step and attempt, and the
// slices of each tensor cover it exactly, without a gap and without an overlap.
absl::Status CheckManifest(const Manifest& manifest);

// Where the elements of a tensor are. Slices without elements are left out.
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

// By tensor name. InvalidArgument where slices of a tensor disagree, overlap or leave a gap. The
// shards are valid.
absl::StatusOr<absl::flat_hash_map<std::string, TensorEntry>> IndexTensors(
    const std::vector<ShardManifest>& shards);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_MANIFEST_H_
