// One checkpoint, open for reading: any range of any tensor, whatever slices it was stored in, so
// that any world size loads what another has saved.
//
// Load returns only bytes that pass their checksums: every chunk that it reads is checked against
// the manifest, the manifest against its own checksum, and the files of each shard's database,
// before it is opened, against the manifest.
//
// Ownership: owns the shards' databases, open for reading; nothing is written.
// Thread-safety: all methods from any number of threads.
#ifndef NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_READER_H_
#define NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_db.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {

struct Damage {
  int32_t rank = 0;
  std::string tensor;  // empty: the damage affects the whole shard
  int64_t chunk = 0;
  std::string reason;  // names the file if it is known
};
// tensor "a", chunk 3 of rank 1: reason
std::string ToString(const Damage& damage);

struct Verification {
  int64_t chunks = 0;  // chunks that were read
  std::vector<Damage> damage;

  bool ok() const { return damage.empty(); }
  // OK without damage, else DataLoss that names the first three damages and counts the rest.
  absl::Status ToStatus() const;
};

class CheckpointReader {
 public:
  // The committed checkpoint in `directory` of the store at `store`. DataLoss, naming the file, if
  // its manifest cannot be read; FailedPrecondition for a newer version or another identity. Load
  // and Verify report shards that are damaged or missing.
  static absl::StatusOr<std::shared_ptr<const CheckpointReader>> Open(
      const StoreIdentity& identity, const std::string& store, const StoredDirectory& directory);

  const Manifest& manifest() const { return manifest_; }
  const absl::flat_hash_map<std::string, TensorEntry>& tensors() const { return tensors_; }

  // OK if the rank's shard is here with the files that were sealed, else why it cannot be read.
  const absl::Status& shard_status(int32_t rank) const { return shards_[rank].status; }

  // Elements [first, first + count) of a tensor, flat and row-major, into `out`: [count] elements
  // of its dtype. NotFound, InvalidArgument, or DataLoss that names the tensor, the chunk and the
  // damage; after an error the content of `out` is undefined.
  absl::Status Load(const std::string& tensor, int64_t first, int64_t count,
                    absl::Span<std::byte> out) const;

  // Reads every chunk of every shard.
  Verification Verify() const;

 private:
  struct Shard {
    absl::Status status;
    std::unique_ptr<ShardDb> db;  // null unless status is OK
  };
  CheckpointReader(Manifest manifest, absl::flat_hash_map<std::string, TensorEntry> tensors)
      : manifest_(std::move(manifest)), tensors_(std::move(tensors)) {}

  // Bytes [from, until) of one chunk, to be copied to `to`.
  struct Want {
    int32_t rank;
    int32_t slice;
    int64_t chunk;
    int64_t from = 0, until = 0;
    std::byte* to = nullptr;
  };

  Shard OpenShard(int32_t rank, const std::string& directory) const;
  absl::Status ReadChunk(const Want& want) const;
  // Reads with several threads. Returns the errors with their indices in `wants`, in order; stops
  // at the first ones if `stop_early`.
  std::vector<std::pair<size_t, absl::Status>> ReadChunks(const std::vector<Want>& wants,
                                                          bool stop_early) const;

  const Manifest manifest_;
  const absl::flat_hash_map<std::string, TensorEntry> tensors_;
  std::vector<Shard> shards_;  // [world]
};

// A damaged checkpoint, and why it was skipped.
struct SkippedCheckpoint {
  int64_t step = 0;
  int64_t attempt = 0;
  absl::Status status;
};

struct GoodCheckpoint {
  std::shared_ptr<const CheckpointReader> reader;
  std::vector<SkippedCheckpoint> skipped;  // newer ones, newest first
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_READER_H_
