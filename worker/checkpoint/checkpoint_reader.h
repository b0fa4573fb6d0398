// One checkpoint, open for reading: any range of any tensor, whatever the slices it was stored in,
// so that any world loads what another has saved.
//
// No byte leaves here that is not the one that was put in: every chunk that a Load touches is held
// against its checksum in the manifest, the manifest against its own, and the files of each shard's
// database, before it is opened, against the manifest.
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
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_db.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {

struct Damage {
  static constexpr int32_t kNoRank = -1;  // of a copy of the manifest

  int32_t rank = kNoRank;
  std::string tensor;  // empty: not of one tensor, but of the shard
  int64_t chunk = 0;
  std::string reason;  // names the file where that is known
};
// tensor "a", chunk 3 of rank 1: reason
std::string ToString(const Damage& damage);

struct Verification {
  int64_t chunks = 0;  // that were looked at
  std::vector<Damage> damage;

  bool ok() const { return damage.empty(); }
  // DataLoss that names the first three damages and counts the rest.
  absl::Status ToStatus() const;
};

class CheckpointReader {
 public:
  // A directory of a store that holds shards of the checkpoint.
  struct Place {
    std::string store;
    StoredDirectory directory;
  };
  // `places` are all of one step and attempt; at least one is committed. DataLoss, naming the
  // files, where no manifest can be read; FailedPrecondition where it is of a newer version or of
  // another identity. A shard that is damaged or in none of the places is found by Load and Verify.
  static absl::StatusOr<std::shared_ptr<const CheckpointReader>> Open(
      const StoreIdentity& identity, const std::vector<Place>& places);

  const Manifest& manifest() const { return manifest_; }
  const absl::flat_hash_map<std::string, TensorEntry>& tensors() const { return tensors_; }

  // Why the shard of a rank cannot be read; OK: its files are there and as they were sealed.
  const absl::Status& shard_status(int32_t rank) const { return shards_[rank].status; }

  // Elements [first, first + count) of a tensor, flat and row-major, into `out`: [count] elements
  // of its dtype. NotFound, InvalidArgument, or DataLoss that names the tensor, the chunk and what
  // is wrong; what is in `out` then is nothing.
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

  // One chunk, and which of its bytes are wanted: [from, until) go to `to`.
  struct Want {
    int32_t rank;
    int32_t slice;
    int64_t chunk;
    int64_t from = 0, until = 0;
    std::byte* to = nullptr;
  };

  Shard FindShard(int32_t rank, const std::vector<Place>& places) const;
  absl::Status ReadChunk(const Want& want) const;
  // By several threads; the errors, each with its place in `wants`, in that order. Stops after the
  // first ones if `stop_early`.
  std::vector<std::pair<size_t, absl::Status>> ReadChunks(const std::vector<Want>& wants,
                                                          bool stop_early) const;

  const Manifest manifest_;
  const absl::flat_hash_map<std::string, TensorEntry> tensors_;
  std::vector<Shard> shards_;  // [world]
  std::vector<Damage> manifest_damage_;  // of copies that were not needed
};

// A checkpoint that was passed over, and why.
struct SkippedCheckpoint {
  int64_t step = 0;
  int64_t attempt = 0;
  absl::Status status;
};

struct GoodCheckpoint {
  std::shared_ptr<const CheckpointReader> reader;
  std::vector<SkippedCheckpoint> skipped;  // newer ones, newest first
};

// The newest of `directories` (oldest first) that `open`s and of which every byte is right.
// NotFound where there are none, DataLoss, naming each, where all are damaged.
absl::StatusOr<GoodCheckpoint> FindLatestGood(
    const std::string& store, const std::vector<StoredDirectory>& directories,
    absl::FunctionRef<absl::StatusOr<std::shared_ptr<const CheckpointReader>>(
        const StoredDirectory&)>
        open);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_READER_H_
