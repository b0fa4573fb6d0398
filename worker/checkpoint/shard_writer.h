// Writes one rank's shard of one checkpoint: Put every slice, then Seal. CheckpointStore::Begin
// makes it, or BeginCopy for a copy of a shard that is sealed elsewhere: then every chunk is held
// against the manifest of that one.
//
// Ownership: owns what it writes until Seal hands it to the store; a writer that is destroyed
// before leaves nothing behind. Thread-safety: one thread at a time; the writers of other ranks,
// and the store, may work at the same time.
#ifndef NIBBLE_WORKER_CHECKPOINT_SHARD_WRITER_H_
#define NIBBLE_WORKER_CHECKPOINT_SHARD_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_db.h"
#include "worker/checkpoint/tensor_slice.h"
#include "worker/checkpoint/write_session.h"

namespace nibble {

class ShardWriter {
 public:
  struct Sizes {
    int64_t chunk_bytes;
    int64_t file_bytes;
  };
  // For CheckpointStore: the session has let the rank in.
  ShardWriter(std::shared_ptr<WriteSession> session, int32_t rank, const Sizes& sizes);
  // A copy of `original`, in its chunks.
  ShardWriter(std::shared_ptr<WriteSession> session, const ShardManifest& original,
              int64_t file_bytes);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Adds a slice. `bytes`: [slice.count] elements of its dtype; they are copied. InvalidArgument
  // for a slice that is none, or another number of bytes. ResourceExhausted, naming the file, when
  // the disk is full; it may come with a later slice, and after it the writer is good for nothing
  // but its destruction.
  absl::Status Put(const TensorSlice& slice, absl::Span<const std::byte> bytes);

  // The same piece by piece: what follows of the slice comes with Append, in order, in pieces of
  // any size; one chunk of it at most is in memory. A copy's slices come as they are in its
  // original; DataLoss, naming tensor and chunk, where bytes are not those of the original.
  absl::Status BeginSlice(const TensorSlice& slice);
  absl::Status Append(absl::Span<const std::byte> bytes);

  // Makes the shard durable: it outlives the process and the machine, but is no checkpoint before
  // the store commits it. Nothing after it.
  absl::StatusOr<ShardManifest> Seal();

  // False where the file system did not take writes past its cache, which is slower; known after
  // Seal.
  bool direct() const { return chunks_.direct(); }

 private:
  absl::Status PutChunk(absl::Span<const std::byte> bytes);
  absl::Status AppendChunks(absl::Span<const std::byte> bytes);
  absl::Status CheckSliceDone() const;
  // Of a copy: whether slice and chunk `at` are those of the original.
  absl::Status CheckAgainstOriginal(const StoredSlice& stored, size_t chunk) const;
  absl::Status FinishDatabase();

  const std::shared_ptr<WriteSession> session_;
  const Sizes sizes_;
  ShardManifest manifest_;
  ChunkFileWriter chunks_;
  const std::optional<ShardManifest> original_;  // of a copy; without its files
  // Of the slice that is being written.
  int64_t left_ = 0;               // bytes that are still to come
  std::vector<std::byte> begun_;   // of a chunk that is not whole yet
  absl::Status status_;
  bool sealed_ = false;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_SHARD_WRITER_H_
