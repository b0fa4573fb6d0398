// One rank's shard, open for reading by itself, whether or not its checkpoint is committed here and
// wherever the checkpoint's other shards are. Only bytes that pass their checksums are returned.
//
// A database cannot detect all damage to itself: a truncated log looks like a shorter one, and a
// damaged table footer can abort the process that reads it. So sealing a shard records every file
// that opening it reads, and the files are checked against the record before RocksDB opens them. Of
// a table only the size and the end, with the footer, are recorded: all its other bytes are in
// blocks, which have RocksDB's checksums, and the chunks in them have ours.
//
// Ownership: a ShardReader owns the shard's database, open for reading; nothing is written.
// Thread-safety: all methods from any number of threads; free functions of the disk.
#ifndef NIBBLE_WORKER_CHECKPOINT_SHARD_READER_H_
#define NIBBLE_WORKER_CHECKPOINT_SHARD_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/files/files.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_db.h"

namespace nibble {

// At least RocksDB's footer, 53 bytes.
inline constexpr int64_t kTableEndBytes = 4096;

// Describes the files of a closed database, ordered by name. Makes the files and their names
// durable.
absl::StatusOr<std::vector<StoredFile>> DescribeShardFiles(const std::string& directory,
                                                           DiskFaults* faults);

// DataLoss, naming the first file that is missing or has changed.
absl::Status CheckShardFiles(const std::string& directory, const std::vector<StoredFile>& files);

// Reads the seal of a shard in a checkpoint's directory and checks the shard's files against it.
// NotFound if there is no seal, DataLoss naming the file.
absl::StatusOr<ShardManifest> ReadSeal(const std::string& directory, int32_t rank);

class ShardReader {
 public:
  // `directory`: the checkpoint's, at any stage. Errors as ReadSeal.
  static absl::StatusOr<std::unique_ptr<ShardReader>> Open(const std::string& directory,
                                                           int32_t rank);

  const ShardManifest& manifest() const { return manifest_; }

  // Bytes [from, from + out.size()) of the shard's concatenated slices. InvalidArgument out of
  // range; DataLoss names the tensor and the chunk.
  absl::Status Read(int64_t from, absl::Span<std::byte> out) const;
  // Reads every chunk and returns the first error; `chunks` becomes the number of chunks read.
  absl::Status Verify(int64_t& chunks) const;

 private:
  ShardReader(ShardManifest manifest, std::unique_ptr<ShardDb> db)
      : manifest_(std::move(manifest)), db_(std::move(db)) {}
  // Bytes [from, from + out.size()) of a chunk; reads the whole chunk.
  absl::Status ReadChunk(size_t slice, int64_t chunk, int64_t from,
                         absl::Span<std::byte> out) const;

  const ShardManifest manifest_;
  const std::unique_ptr<ShardDb> db_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_SHARD_READER_H_
