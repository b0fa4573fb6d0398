// One rank's shard, open for reading by itself: wherever its checkpoint's other shards are, and
// whether the checkpoint is committed here or not. No byte leaves here that is not the one that was
// put in.
//
// Ownership: owns the shard's database, open for reading; nothing is written.
// Thread-safety: all methods from any number of threads.
#ifndef NIBBLE_WORKER_CHECKPOINT_SHARD_READER_H_
#define NIBBLE_WORKER_CHECKPOINT_SHARD_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_db.h"

namespace nibble {

// The seal of a shard in a checkpoint's directory, once the shard's files are as they were sealed.
// NotFound where there is none, DataLoss naming the file.
absl::StatusOr<ShardManifest> ReadSeal(const std::string& directory, int32_t rank);

class ShardReader {
 public:
  // `directory`: of the checkpoint, at any stage. Errors as ReadSeal.
  static absl::StatusOr<std::unique_ptr<ShardReader>> Open(const std::string& directory,
                                                           int32_t rank);

  const ShardManifest& manifest() const { return manifest_; }

  // Bytes [from, from + out.size()) of the shard: its slices one after the other. InvalidArgument
  // outside of it; DataLoss names the tensor and the chunk.
  absl::Status Read(int64_t from, absl::Span<std::byte> out) const;
  // Reads every chunk; the first that is not right. `chunks` is how many there are.
  absl::Status Verify(int64_t& chunks) const;

 private:
  ShardReader(ShardManifest manifest, std::unique_ptr<ShardDb> db)
      : manifest_(std::move(manifest)), db_(std::move(db)) {}
  // Bytes [from, from + out.size()) of a chunk, which is read whole.
  absl::Status ReadChunk(size_t slice, int64_t chunk, int64_t from,
                         absl::Span<std::byte> out) const;

  const ShardManifest manifest_;
  const std::unique_ptr<ShardDb> db_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_SHARD_READER_H_
