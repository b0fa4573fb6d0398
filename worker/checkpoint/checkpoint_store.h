// The checkpoints of one job on one disk; docs/formats/checkpoint-store.md describes the format.
//
// Checkpoints are atomic, even when several ranks write their shards, and into several stores. A
// checkpoint is made in two phases:
//
//   each rank   Begin(step, attempt, rank) → Put(slice, bytes) … → Seal()   durable, not visible
//   one of them Commit(MakeManifest(header, the shards of all ranks))       visible
//
// Ranks of one process share a store. Where each has a store of its own, the same manifest is
// committed in each of them, first in the one that decides (Options::decides).
//
// BeginCopy copies shards from other stores and checks every chunk; once all shards of a
// checkpoint are here, it can be committed here as well.
//
// Fencing: an attempt is one launch of the job. Once Fence or Begin has recorded an attempt, no
// lower attempt begins or commits anything (Aborted), also after a restart. A store that does not
// decide commits what the deciding store has committed, regardless of the attempts it has recorded.
//
// "Latest" is the checkpoint committed last; after a roll back to an earlier step that is not the
// one with the highest step.
//
// Ownership: owns the directory's lock, unless opened read-only; a ShardWriter shares it.
// Thread-safety: all methods from any thread; Retention's functions are pure. Methods that change
// the store wait for the disk and for each other; attempt(), generation() and InDoubt() do not.
#ifndef NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_STORE_H_
#define NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_STORE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/file_lock.h"
#include "common/files/files.h"
#include "common/mutex.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_reader.h"
#include "worker/checkpoint/shard_writer.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {

// Which checkpoints to keep: those that any of these rules keeps, and those of pinned steps.
struct Retention {
  int64_t keep_last = 2;   // the number of newest checkpoints; at least 1
  int64_t keep_every = 0;  // steps that are a multiple of this; 0: no such rule
};

absl::Status CheckRetention(const Retention& retention);

// The committed checkpoints to delete. `committed` is ordered by serial. Of several of one step
// only the last can be kept; the others are always deleted.
std::vector<StoredDirectory> ToDelete(const std::vector<StoredDirectory>& committed,
                                      const std::set<int64_t>& pinned, const Retention& retention);

struct CheckpointSummary {
  int64_t step = 0;
  int64_t attempt = 0;
  bool pinned = false;
  absl::Status status;  // not OK: its manifest cannot be read, and the fields below are empty
  CheckpointHeader header;
  int64_t tensors = 0;
  int64_t bytes = 0;
};

class CheckpointStore {
 public:
  struct Options {
    StoreIdentity identity;
    // Writes nothing and takes no lock, so another process may be writing.
    bool read_only = false;
    // This store's commits decide whether a checkpoint exists, so opening it removes shards that
    // are sealed and not committed. Otherwise another store decides, and sealed shards wait for
    // Commit or Discard (see InDoubt).
    bool decides = true;
    Retention retention;
    int64_t chunk_bytes = int64_t{1} << 18;  // 8 to 2^30
    int64_t file_bytes = int64_t{1} << 30;   // approximate bytes of chunks per file; at least 1
    // Of a store that does not decide: takes sealed shards that are found damaged when the store or
    // a checkpoint is opened again; called while the store is locked, so it must not call it. Null:
    // they are removed.
    TakeDamaged damaged;
    DiskFaults* faults = nullptr;  // for tests
  };

  struct OpenReport {
    bool created = false;
    std::vector<std::string> removed;  // leftovers
    int64_t removed_bytes = 0;
    std::vector<std::string> problems;  // found, and how they were handled
  };
  struct CommitReport {
    std::vector<int64_t> deleted;  // steps that retention removed
    std::vector<std::string> problems;
  };

  // Creates the store if there is none (NotFound if read_only). FailedPrecondition for a store of
  // another job or cluster, naming both, or of a newer version; Unavailable, naming the process, if
  // another has it open for writing; DataLoss if its own record is damaged and no checkpoint in it
  // identifies the job.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(const std::string& path,
                                                               const Options& options);
  // The identity of the store at `path`, for callers that open any store: from its record, or if
  // that is damaged from a checkpoint in it. NotFound if there is no store, DataLoss if neither is
  // readable.
  static absl::StatusOr<StoreIdentity> IdentityOf(const std::string& path);
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  const std::string& path() const { return path_; }
  const StoreIdentity& identity() const { return options_.identity; }
  const OpenReport& open_report() const { return open_report_; }

  // If the directory was removed or replaced, opens the one that is there now, or creates it again,
  // with the same identity and fence; its previous content is lost. Begin and BeginCopy do so, too.
  absl::Status MakeAgainIfRemoved();
  // Increases each time that happens.
  int64_t generation() const;

  // --- Writing. FailedPrecondition if the store is read-only.

  // The highest attempt recorded.
  int64_t attempt() const;
  // Records the start of an attempt. Aborted if a higher one is recorded.
  absl::Status Fence(int64_t attempt);

  // Drops the rank's uncommitted shard of this step and attempt, if there is one. Aborted for a
  // stale attempt, FailedPrecondition while the rank writes it.
  absl::StatusOr<std::unique_ptr<ShardWriter>> Begin(int64_t step, int64_t attempt, int32_t rank);

  // Begins a copy of a shard that is sealed elsewhere, of any attempt: the caller knows that its
  // checkpoint exists. Drops the rank's uncommitted shard here. FailedPrecondition if the store
  // decides, or the checkpoint is committed here (Reopen it).
  absl::StatusOr<std::unique_ptr<ShardWriter>> BeginCopy(const ShardManifest& original);

  // Commits the checkpoint: it is durable on return and becomes the latest. Replaces one of the
  // same step. Then removes checkpoints that retention does not keep and, if this store decides,
  // leftovers of older ones. Aborted, naming both, for a stale attempt; FailedPrecondition if the
  // shards sealed here do not match the manifest; ResourceExhausted when the disk is full, and then
  // Commit can be retried.
  absl::StatusOr<CommitReport> Commit(const Manifest& manifest);

  // Drops the sealed, uncommitted shards of this step and attempt, if any.
  absl::Status Discard(int64_t step, int64_t attempt);
  // As Discard, for one rank. NotFound if its shard is not here.
  absl::Status DiscardShard(int64_t step, int64_t attempt, int32_t rank);
  // As DiscardShard, but moves the shard to a directory on the same file system.
  absl::Status MoveShardOut(int64_t step, int64_t attempt, int32_t rank, const std::string& to);
  // Moves a shard back that MoveShardOut has moved to `from`: it is sealed and uncommitted again.
  // AlreadyExists if the rank's shard is here; otherwise errors as BeginCopy and ReadSeal.
  absl::StatusOr<ShardManifest> MoveShardIn(int64_t step, int64_t attempt, int32_t rank,
                                            const std::string& from);

  // Undoes Commit: the shards become sealed and uncommitted again, except those whose files have
  // changed since they were sealed. NotFound if the checkpoint is not committed here,
  // FailedPrecondition if the store decides.
  absl::Status Reopen(int64_t step, int64_t attempt);

  // Shards that are sealed and neither committed nor dropped. The caller commits those that the
  // deciding store has committed, and discards the others.
  std::vector<ShardManifest> InDoubt() const;

  // --- Retention. NotFound for a step that has no checkpoint.

  absl::Status Pin(int64_t step);
  absl::Status Unpin(int64_t step);
  // FailedPrecondition for a pinned step. The space is free on return.
  absl::Status Delete(int64_t step);

  // --- Reading.

  // Oldest first.
  absl::StatusOr<std::vector<CheckpointSummary>> List() const;
  absl::StatusOr<std::shared_ptr<const CheckpointReader>> OpenCheckpoint(int64_t step) const;
  absl::StatusOr<Verification> Verify(int64_t step) const;
  // One shard, sealed or committed. NotFound if it is not here, DataLoss naming the file.
  absl::StatusOr<std::unique_ptr<ShardReader>> OpenShard(int64_t step, int64_t attempt,
                                                         int32_t rank) const;

  // The newest checkpoint that passes its checksums; `skipped` lists newer, damaged ones. NotFound
  // if there is no checkpoint; DataLoss, naming each, if all are damaged.
  absl::StatusOr<GoodCheckpoint> LatestGood() const;

  // Committed directories, oldest first.
  absl::StatusOr<std::vector<StoredDirectory>> Committed() const;

 private:
  CheckpointStore(const std::string& path, const Options& options)
      : path_(path), options_(options) {}

  // A copy of the state, for readers that must not wait for the disk.
  struct Published {
    int64_t attempt = 0;
    int64_t generation = 0;
    std::set<int64_t> pinned;
    std::vector<std::shared_ptr<WriteSession>> sessions;
  };
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) ABSL_LOCKS_EXCLUDED(published_mutex_);

  // Locks mutex_ for a change of the store, and publishes the result at its end.
  class ABSL_SCOPED_LOCKABLE Change {
   public:
    explicit Change(CheckpointStore& store) ABSL_EXCLUSIVE_LOCK_FUNCTION(store.mutex_)
        : store_(store) {
      store_.mutex_.Lock();
    }
    ~Change() ABSL_UNLOCK_FUNCTION() {
      store_.Publish();
      store_.mutex_.Unlock();
    }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    CheckpointStore& store_;
  };

  // The steps of Open, in order.
  absl::Status ReadOrCreate(OpenReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Rebuild(const absl::Status& why, OpenReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RemoveLeftovers(OpenReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::string FilePath() const;
  absl::Status CheckWritable() const;
  absl::Status MakeAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RaiseFence(int64_t attempt, const char* doing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteFile(const StoreFile& file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NotSealed(int64_t step, int64_t attempt, int32_t rank) const;
  std::shared_ptr<WriteSession> FindSession(int64_t step, int64_t attempt) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // FailedPrecondition unless shards of other stores can be added to the checkpoint.
  absl::Status CheckTakesCopies(int64_t step, int64_t attempt) const;
  // The session of the step and attempt, which the rank has entered.
  absl::StatusOr<std::shared_ptr<WriteSession>> EnterSession(int64_t step, int64_t attempt,
                                                             int32_t rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Enters the session of the shard's step and attempt; `copy` as in ShardWriter.
  absl::StatusOr<std::unique_ptr<ShardWriter>> StartWriting(const ShardManifest& shard, bool copy)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status DeleteDirectory(const StoredDirectory& directory)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CollectGarbage(const StoredDirectory& newest, CommitReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<StoredDirectory> FindCommitted(int64_t step) const;

  const std::string path_;
  const Options options_;
  OpenReport open_report_;

  // Orders changes of the directory, and so is held while they wait for the disk.
  mutable Mutex mutex_;
  std::shared_ptr<const FileLock> lock_ ABSL_GUARDED_BY(mutex_);  // null if read_only
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  StoreFile file_ ABSL_GUARDED_BY(mutex_);
  int64_t last_serial_ ABSL_GUARDED_BY(mutex_) = 0;
  // By serial.
  std::vector<std::shared_ptr<WriteSession>> sessions_ ABSL_GUARDED_BY(mutex_);

  mutable Mutex published_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  Published published_ ABSL_GUARDED_BY(published_mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_STORE_H_
