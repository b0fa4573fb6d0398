// The checkpoints of one job on one disk. docs/formats/checkpoint-store.md describes what is on it.
//
// A checkpoint is made in two phases, so that it exists either whole or not at all, also when its
// shards are written by several ranks, and in several stores:
//
//   each rank   Begin(step, attempt, rank) → Put(slice, bytes) … → Seal()   durable, not visible
//   one of them Commit(MakeManifest(header, the shards of all ranks))       visible, as one
//
// Ranks of one process share a store. Where each has a store of its own, the same manifest is
// committed in each of them, first in the one that decides (Options::decides), and CheckpointSet
// reads them together.
//
// Shards of other stores are copied with BeginCopy, checked chunk by chunk; once all of a
// checkpoint are here it can be committed here, too.
//
// Fencing: an attempt is one launch of the job. From the moment that the store has seen an attempt,
// by Fence or by Begin, no lower one begins or commits anything (Aborted), also after a restart. A
// store that does not decide commits what another store has, whatever it has seen since.
//
// "Latest" is the one committed last; after a roll back to an earlier step that is not the one
// with the highest step.
//
// Ownership: owns the directory's lock, unless opened to read; a ShardWriter keeps it too.
// Thread-safety: all methods from any thread.
#ifndef NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_STORE_H_
#define NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_STORE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/disk.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/retention.h"
#include "worker/checkpoint/shard_reader.h"
#include "worker/checkpoint/shard_writer.h"
#include "worker/checkpoint/store_file.h"
#include "worker/checkpoint/store_layout.h"
#include "worker/checkpoint/store_lock.h"
#include "worker/checkpoint/write_session.h"

namespace nibble {

struct CheckpointSummary {
  int64_t step = 0;
  int64_t attempt = 0;
  bool pinned = false;
  absl::Status status;  // not OK: its manifest cannot be read, and what follows is empty
  CheckpointHeader header;
  int64_t tensors = 0;
  int64_t bytes = 0;
};

class CheckpointStore {
 public:
  struct Options {
    StoreIdentity identity;
    // Nothing is written, no lock is taken: beside another process that writes.
    bool read_only = false;
    // This store's commits decide whether a checkpoint exists, so what is sealed and not committed
    // when it is opened is a leftover, and removed. Otherwise another store decides, and sealed
    // shards wait for Commit or Discard (see InDoubt).
    bool decides = true;
    Retention retention;
    int64_t chunk_bytes = int64_t{1} << 18;  // 8 to 2^30
    int64_t file_bytes = int64_t{1} << 30;   // of chunks, roughly, in one file; at least 1
    DiskFaults* faults = nullptr;            // for tests
  };

  struct OpenReport {
    bool created = false;
    std::vector<std::string> removed;  // leftovers
    int64_t removed_bytes = 0;
    std::vector<std::string> problems;  // found, and what was done about them
  };
  struct CommitReport {
    std::vector<int64_t> deleted;  // steps that retention let go
    std::vector<std::string> problems;
  };

  // Makes the store where there is none (NotFound if read_only). FailedPrecondition for a store of
  // another job or cluster, naming both, or of a newer version; Unavailable, naming the process,
  // where another has it open for writing; DataLoss where its own record is damaged and no
  // checkpoint in it says whose it is.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(const std::string& path,
                                                               const Options& options);
  // Whose store this is, for those who open any: by its record, or where that is damaged by a
  // checkpoint in it. NotFound where there is no store, DataLoss where nothing here says it.
  static absl::StatusOr<StoreIdentity> IdentityOf(const std::string& path);
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  const std::string& path() const { return path_; }
  const StoreIdentity& identity() const { return options_.identity; }
  const OpenReport& open_report() const { return open_report_; }

  // Where the directory was removed or replaced underneath, opens what is there now, or makes it
  // again, with the same identity and fence; what was in it is lost. Begin and BeginCopy do so, too.
  absl::Status MakeAgainIfRemoved();
  // Grows whenever that was so.
  int64_t generation() const;

  // --- Writing. FailedPrecondition where the store is read-only.

  // The highest attempt seen.
  int64_t attempt() const;
  // A new attempt begins. Aborted if a higher one was seen.
  absl::Status Fence(int64_t attempt);

  // What the rank had sealed for this step and attempt, and was not committed, is dropped. Aborted
  // for a stale attempt, FailedPrecondition while the rank writes it.
  absl::StatusOr<std::unique_ptr<ShardWriter>> Begin(int64_t step, int64_t attempt, int32_t rank);

  // A copy of a shard that is sealed elsewhere, of any attempt: whoever asks for it knows that its
  // checkpoint exists. What is here of the rank and not committed is dropped. FailedPrecondition
  // where the store decides, or the checkpoint is committed here (Reopen it).
  absl::StatusOr<std::unique_ptr<ShardWriter>> BeginCopy(const ShardManifest& original);

  // Makes it a checkpoint: durable on return, and from then on the latest. Replaces one of the
  // same step. Then removes what retention does not keep and, if this store decides, what older
  // checkpoints left behind. Aborted, naming both, for a stale attempt; FailedPrecondition where
  // what is sealed here is not what the manifest says; ResourceExhausted when the disk is full, and
  // then it can be tried again.
  absl::StatusOr<CommitReport> Commit(const Manifest& manifest);

  // Drops what is sealed and not committed of this step and attempt, if anything.
  absl::Status Discard(int64_t step, int64_t attempt);
  // Of one rank. NotFound where it is not here.
  absl::Status DiscardShard(int64_t step, int64_t attempt, int32_t rank);

  // The opposite of Commit: its shards are sealed and wait, less those whose files are not as they
  // were sealed. NotFound where it is not committed here, FailedPrecondition where the store
  // decides.
  absl::Status Reopen(int64_t step, int64_t attempt);

  // Shards that are sealed and neither committed nor dropped. What the store that decides has
  // committed of them is to be committed here too, the rest discarded.
  std::vector<ShardManifest> InDoubt() const;

  // --- Keeping. NotFound for a step that has no checkpoint.

  absl::Status Pin(int64_t step);
  absl::Status Unpin(int64_t step);
  // FailedPrecondition for a pinned one. Its space is free on return.
  absl::Status Delete(int64_t step);

  // --- Reading.

  // Oldest first.
  absl::StatusOr<std::vector<CheckpointSummary>> List() const;
  absl::StatusOr<std::shared_ptr<const CheckpointReader>> OpenCheckpoint(int64_t step) const;
  absl::StatusOr<Verification> Verify(int64_t step) const;
  // One shard, sealed or committed. NotFound where it is not here, DataLoss naming the file.
  absl::StatusOr<std::unique_ptr<ShardReader>> OpenShard(int64_t step, int64_t attempt,
                                                         int32_t rank) const;

  // The newest checkpoint of which every byte is right; those that are not are named in `skipped`.
  // NotFound where there is no checkpoint, DataLoss, naming each, where all are damaged.
  absl::StatusOr<GoodCheckpoint> LatestGood() const;

  // For CheckpointSet: committed directories, oldest first, and all that may hold shards of a
  // checkpoint.
  absl::StatusOr<std::vector<StoredDirectory>> Committed() const;
  absl::StatusOr<std::vector<CheckpointReader::Place>> Places(int64_t step, int64_t attempt) const;

 private:
  CheckpointStore(const std::string& path, const Options& options)
      : path_(path), options_(options) {}

  // What Open does, in order.
  absl::Status ReadOrCreate();
  absl::Status Rebuild(const absl::Status& why);
  absl::Status RemoveLeftovers();

  std::string FilePath() const;
  absl::Status CheckWritable() const;
  // With mutex_ held.
  absl::Status MakeAgainLocked();
  absl::Status FenceLocked(int64_t attempt, const char* doing);
  absl::Status WriteFile(const StoreFile& file);
  std::shared_ptr<WriteSession> FindSession(int64_t step, int64_t attempt) const;
  // The session of this step and attempt, which the rank has entered.
  absl::StatusOr<std::shared_ptr<WriteSession>> EnterSession(int64_t step, int64_t attempt,
                                                             int32_t rank);
  absl::Status DeleteDirectory(const StoredDirectory& directory);
  void CollectGarbage(const StoredDirectory& newest, CommitReport& report);
  absl::StatusOr<StoredDirectory> FindCommitted(int64_t step) const;

  const std::string path_;
  const Options options_;
  OpenReport open_report_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<StoreLock> lock_;  // null if read_only
  int64_t generation_ = 0;
  StoreFile file_;
  int64_t last_serial_ = 0;
  std::vector<std::shared_ptr<WriteSession>> sessions_;  // by serial
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_STORE_H_
