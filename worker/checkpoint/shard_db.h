// The chunks of one rank's shard of one checkpoint: a RocksDB of its own, filled once and then only
// read.
//
// A database per shard, and not one for all checkpoints: damage of any file, RocksDB's own included,
// then costs one checkpoint and not the store; deleting is removing a directory, which gives the
// space back at once; and what failed halfway is dropped without a trace.
//
// Chunks come in table files that are written beside the database, straight to the disk, and then
// adopted by it: they are sorted already, and every byte is written once.
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
#include "worker/checkpoint/disk.h"

namespace nibble {

class ShardDb {
 public:
  // A new database at `path`, where nothing is yet. Nothing of it is durable before it is closed
  // and DescribeShardFiles (shard_files.h) has synced its files.
  static absl::StatusOr<std::unique_ptr<ShardDb>> Create(const std::string& path,
                                                         DiskFaults* faults);
  // Writes nothing at all. The files are as they were when they were written (shard_files.h):
  // RocksDB may end the process over others.
  static absl::StatusOr<std::unique_ptr<ShardDb>> OpenToRead(const std::string& path);
  ~ShardDb();
  ShardDb(const ShardDb&) = delete;
  ShardDb& operator=(const ShardDb&) = delete;

  // Takes in files of a ChunkFileWriter, which are gone from their old names then.
  absl::Status Adopt(const std::vector<std::string>& files);
  // Calls `use` with the chunk's bytes, as they are on disk, and returns its status; DataLoss where
  // there is no such chunk.
  absl::Status ReadChunk(
      int32_t slice, int64_t chunk,
      absl::FunctionRef<absl::Status(absl::Span<const std::byte> bytes)> use) const;

  // Nothing but destruction after it.
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
  // Files are named `prefix` and a number, and a new one is begun after `file_bytes`.
  ChunkFileWriter(std::string prefix, int64_t file_bytes, DiskFaults* faults);
  ~ChunkFileWriter();
  ChunkFileWriter(const ChunkFileWriter&) = delete;
  ChunkFileWriter& operator=(const ChunkFileWriter&) = delete;

  // In order of slice, then chunk. The bytes are copied; an error may be that of earlier chunks.
  absl::Status Put(int32_t slice, int64_t chunk, absl::Span<const std::byte> bytes);
  // The files written, durable. Nothing after it.
  absl::StatusOr<std::vector<std::string>> Finish();
  // False where the file system did not let a file be written past the page cache; known for a
  // file when it is finished.
  bool direct() const;

 private:
  struct Handle;
  absl::Status FinishFile();

  std::unique_ptr<Handle> handle_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_SHARD_DB_H_
