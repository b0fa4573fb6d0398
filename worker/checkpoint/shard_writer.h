// Writing a checkpoint into a store.
//
// WriteSession: one checkpoint being written: the directory writing-…, and the shards in it that
// are being written or are sealed. It ends committed, as a checkpoint, or dropped.
//
// ShardWriter: writes one rank's shard: Put every slice, then Seal. CheckpointStore::Begin makes
// it, or BeginCopy for a copy of a shard that is sealed elsewhere; every chunk of a copy is checked
// against the original's manifest.
//
// Ownership: a WriteSession is shared by the store and its ShardWriters and shares the store's
// lock, so that no other process writes into the store while a writer lives. A ShardWriter owns its
// files until Seal passes them to the store; destroyed before that, it removes them.
// Thread-safety: WriteSession: all methods from any thread, but only the store calls Enter, Commit,
// Remove, MoveOut, MoveIn and Drop, one at a time; no method waits for the disk with the lock held.
// ShardWriter: one thread at a time, independent of the store and other ranks' writers.
#ifndef NIBBLE_WORKER_CHECKPOINT_SHARD_WRITER_H_
#define NIBBLE_WORKER_CHECKPOINT_SHARD_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/files/file_lock.h"
#include "common/files/files.h"
#include "common/mutex.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_db.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {

// Moves a sealed shard from one checkpoint's directory to another, on the same file system. A crash
// at any moment leaves the database in one of the two, with its seal; the seal alone may be in the
// other. On an error the database is in `to` if only a sync has failed.
absl::Status MoveShardFiles(const std::string& from, int32_t rank, const std::string& to,
                            DiskFaults* faults);

// Receives a sealed shard of the directory whose files have changed since then, and moves them
// away. If it fails they stay.
using TakeDamaged = std::function<absl::Status(const StoredDirectory& directory, int32_t rank)>;

class WriteSession {
 public:
  // Makes the directory. `directory.stage` is kWriting.
  static absl::StatusOr<std::shared_ptr<WriteSession>> Create(const std::string& store,
                                                              const StoredDirectory& directory,
                                                              std::shared_ptr<const FileLock> lock,
                                                              DiskFaults* faults);
  // Recovers the sealed shards of a directory that a process left behind; removes the others, the
  // damaged ones only if `damaged` is null. Null, with the directory removed, if none is sealed.
  static absl::StatusOr<std::shared_ptr<WriteSession>> Recover(const std::string& store,
                                                               const StoredDirectory& directory,
                                                               std::shared_ptr<const FileLock> lock,
                                                               DiskFaults* faults,
                                                               const TakeDamaged& damaged);

  const StoredDirectory& directory() const { return directory_; }
  const std::string& path() const { return path_; }
  DiskFaults* faults() const { return faults_; }

  // For ShardWriter. Enter drops the rank's sealed shard; false if the session has ended,
  // FailedPrecondition if the rank is being written. Leave removes the rank's files, and the
  // directory with the last rank.
  absl::StatusOr<bool> Enter(int32_t rank);
  void Leave(int32_t rank);
  // Records a closed shard as sealed, durably.
  absl::Status Seal(const ShardManifest& manifest);

  // Paths of a rank's database and of the chunk files beside it while they are written.
  std::string ShardPath(int32_t rank) const;
  std::string ChunkFilePrefix(int32_t rank) const;

  bool ended() const;
  bool being_written() const;
  std::vector<ShardManifest> sealed() const;

  // Writes the manifest and renames the directory, which makes it a checkpoint. FailedPrecondition
  // if a shard is still being written, none is sealed, or the sealed shards do not match the
  // manifest. Any other error leaves the session unchanged, and Commit can be retried.
  absl::Status Commit(const Manifest& manifest);
  // Removes one sealed shard, and the directory with the last one. NotFound if it is not here,
  // FailedPrecondition while it is being written.
  absl::Status Remove(int32_t rank);
  // As Remove, but moves the shard to the directory `to`.
  absl::Status MoveOut(int32_t rank, const std::string& to);
  // Moves a sealed shard here from the directory `from`. Its rank has entered.
  absl::Status MoveIn(const ShardManifest& manifest, const std::string& from);
  // Removes the directory. FailedPrecondition if a shard is still being written.
  absl::Status Drop();

 private:
  enum class ShardState {
    kWriting,
    kSealed,
    kRemoving,  // its files are being removed
  };
  struct Shard {
    ShardState state = ShardState::kWriting;
    ShardManifest manifest;  // once it is sealed
  };

  WriteSession(const std::string& store, const StoredDirectory& directory,
               std::shared_ptr<const FileLock> lock, DiskFaults* faults);
  // FailedPrecondition, naming the rank, if a shard is neither sealed nor gone.
  absl::Status CheckAllSealed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckAgainst(const Manifest& manifest) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckSealed(int32_t rank) const ABSL_LOCKS_EXCLUDED(mutex_);
  void RemoveFiles(int32_t rank) const;

  const std::string store_;
  const StoredDirectory directory_;
  const std::string path_;
  const std::shared_ptr<const FileLock> lock_;
  DiskFaults* const faults_;

  mutable Mutex mutex_;
  CondVar removed_;  // a shard in kRemoving is gone
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int32_t, Shard> shards_ ABSL_GUARDED_BY(mutex_);
};

class ShardWriter {
 public:
  // For CheckpointStore: the rank has entered the session. With `copy`, writes a copy of `shard`,
  // in the same chunks; otherwise `shard` has no slices yet.
  ShardWriter(std::shared_ptr<WriteSession> session, const ShardManifest& shard, int64_t file_bytes,
              bool copy);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Adds a slice. `bytes`: [slice.count] elements of its dtype; copied. InvalidArgument for an
  // invalid slice or another number of bytes. ResourceExhausted, naming the file, when the disk is
  // full; it may be returned for a later slice, and then the writer can only be destroyed.
  absl::Status Put(const TensorSlice& slice, absl::Span<const std::byte> bytes);

  // Put in pieces: BeginSlice, then Append the slice's bytes in order, in pieces of any size; at
  // most one chunk is buffered. The slices of a copy are those of its original; DataLoss, naming
  // tensor and chunk, if the bytes differ from the original's.
  absl::Status BeginSlice(const TensorSlice& slice);
  absl::Status Append(absl::Span<const std::byte> bytes);

  // Makes the shard durable; it becomes part of a checkpoint only when the store commits it. The
  // last call.
  absl::StatusOr<ShardManifest> Seal();

  // False if the file system did not take writes past the page cache, which is slower; known after
  // Seal.
  bool direct() const { return chunks_.direct(); }

 private:
  absl::Status PutChunk(absl::Span<const std::byte> bytes);
  absl::Status AppendChunks(absl::Span<const std::byte> bytes);
  absl::Status CheckSliceDone() const;
  absl::Status FinishDatabase();

  const std::shared_ptr<WriteSession> session_;
  ShardManifest manifest_;
  ChunkFileWriter chunks_;
  const std::optional<ShardManifest> original_;  // of a copy; without its files
  // The slice being written.
  int64_t left_ = 0;              // bytes still to be appended
  std::vector<std::byte> begun_;  // of an incomplete chunk
  absl::Status status_;
  bool sealed_ = false;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_SHARD_WRITER_H_
