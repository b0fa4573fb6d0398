// The chunks of one rank's shard of one checkpoint: a RocksDB database of its own, filled once and
// then only read.
//
// One database per shard rather than one for all checkpoints: damage to any file, RocksDB's own
// included, then costs one checkpoint and not the store; deleting means removing a directory, which
// frees the space at once; and a failed write leaves nothing behind.
//
// Chunks are written into table files beside the database, directly to the disk, and then ingested:
// they are already sorted, and every byte is written once.
//
// Ownership: owns the database handle; borrows `faults`.
// Thread-safety: ReadChunk from any number of threads; the others from one.
#ifndef NIBBLE_WORKER_CHECKPOINT_SHARD_DB_H_
#define NIBBLE_WORKER_CHECKPOINT_SHARD_DB_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/files/files.h"

namespace nibble {

class ShardDb {
 public:
  // Creates a database at `path`, which must not exist. It becomes durable when it is closed and
  // DescribeShardFiles (shard_reader.h) has synced its files.
  static absl::StatusOr<std::unique_ptr<ShardDb>> Create(const std::string& path,
                                                         DiskFaults* faults);
  // Writes nothing. CheckShardFiles (shard_reader.h) must have passed: RocksDB may abort the
  // process on damaged files.
  static absl::StatusOr<std::unique_ptr<ShardDb>> OpenToRead(const std::string& path);
  ~ShardDb();
  ShardDb(const ShardDb&) = delete;
  ShardDb& operator=(const ShardDb&) = delete;

  // Ingests files of a ChunkFileWriter, moving them from their old names.
  absl::Status Adopt(const std::vector<std::string>& files);
  // Calls `use` with the chunk's bytes as stored, and returns its status; DataLoss if there is no
  // such chunk.
  absl::Status ReadChunk(
      int32_t slice, int64_t chunk,
      absl::FunctionRef<absl::Status(absl::Span<const std::byte> bytes)> use) const;

  // The last call before destruction.
  absl::Status Close();

 private:
  struct Handle;
  explicit ShardDb(std::unique_ptr<Handle> handle);

  std::unique_ptr<Handle> handle_;
};

// Writes the chunks of a shard into files that ShardDb::Adopt takes.
//
// Ownership: owns the file being written; the files belong to the caller, also after an error.
// Thread-safety: one thread at a time.
class ChunkFileWriter {
 public:
  // Files are named `prefix` plus a number; a new one begins after `file_bytes`.
  ChunkFileWriter(std::string prefix, int64_t file_bytes, DiskFaults* faults);
  ~ChunkFileWriter();
  ChunkFileWriter(const ChunkFileWriter&) = delete;
  ChunkFileWriter& operator=(const ChunkFileWriter&) = delete;

  // Calls are in order of slice, then chunk. Copies the bytes; may return the error of an earlier
  // chunk.
  absl::Status Put(int32_t slice, int64_t chunk, absl::Span<const std::byte> bytes);
  // Returns the files written, durable. The last call.
  absl::StatusOr<std::vector<std::string>> Finish();
  // False if the file system did not let a file be written past the page cache; known for a file
  // when it is finished.
  bool direct() const;

 private:
  struct Handle;
  absl::Status FinishFile();

  std::unique_ptr<Handle> handle_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_SHARD_DB_H_
