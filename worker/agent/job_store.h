// The checkpoints of one job on this worker's disk: a CheckpointStore, and beside it what a crash
// between two steps of CheckpointRegistry needs.
//
// On disk, in the job's directory:
//   checkpoints/                 the store
//   pending-STEP-ATTEMPT.header  of a checkpoint whose shards are sealed and not committed
//   ordered-by-STEP-ATTEMPT      "ID EPOCH EPOCH-ID" of the coordinator store that ordered it
//
// Sealed shards leave by the trash (trash.h), which is on the same file system; only those without
// a header, which were never reported, are removed at once.
//
// The directory may be removed at any time; it is made again when something is stored.
//
// Ownership: owns the store; borrows the trash. Thread-safety: the caller orders List, Commit,
// Reopen, MoveToTrash, TakeFromTrash and listed_generation(); the other methods from any thread.
#ifndef NIBBLE_WORKER_AGENT_JOB_STORE_H_
#define NIBBLE_WORKER_AGENT_JOB_STORE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/files.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/shard_index.h"
#include "worker/agent/trash.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {

class JobStore {
 public:
  // Opens the store, or creates it. Errors as CheckpointStore::Open. `faults` may be null.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const std::string& job,
                                                        const std::string& directory,
                                                        const StoreIdentity& identity, Trash* trash,
                                                        DiskFaults* faults);

  CheckpointStore& store() const { return *store_; }

  // Everything on disk. Sealed shards without a header were never reported, and are removed.
  absl::StatusOr<ShardIndex::Checkpoints> List();
  // Generation of the store at the latest List.
  int64_t listed_generation() const { return listed_generation_; }

  // Durable on return. An unset store id writes nothing.
  absl::Status WriteOrigin(int64_t step, int64_t attempt, const v1::StoreIdentity& store) const;
  absl::Status WriteHeader(const CheckpointHeader& header) const;

  // Commits the sealed shards of the header's checkpoint.
  absl::Status Commit(const CheckpointHeader& header);
  // Undoes Commit; returns the ranks whose shards are sealed now.
  absl::StatusOr<std::set<int32_t>> Reopen(const CheckpointHeader& header);
  // Moves a sealed shard of the checkpoint to the trash. NotFound if it is not in the store.
  absl::Status MoveToTrash(const StoredCheckpoint& checkpoint, int32_t rank,
                           const Deletion& deletion);
  // Moves a shard back from the trash's `directory`, with its header and its origin: it is sealed.
  absl::StatusOr<ShardManifest> TakeFromTrash(const v1::TrashedShard& shard,
                                              const CheckpointHeader& header,
                                              const std::string& directory);
  // Removes the files beside the store.
  void RemoveHeader(int64_t step, int64_t attempt) const;
  void RemoveOrigin(int64_t step, int64_t attempt) const;

 private:
  JobStore(std::string job, std::string directory, Trash* trash, DiskFaults* faults)
      : job_(std::move(job)), directory_(std::move(directory)), trash_(trash), faults_(faults) {}
  std::string HeaderPath(int64_t step, int64_t attempt) const;
  std::string OriginPath(int64_t step, int64_t attempt) const;
  // Of an uncommitted checkpoint. NotFound, or DataLoss.
  absl::StatusOr<CheckpointHeader> ReadHeader(int64_t step, int64_t attempt) const;
  v1::StoreIdentity ReadOrigin(int64_t step, int64_t attempt) const;
  absl::Status AddCommitted(ShardIndex::Checkpoints& checkpoints) const;
  absl::Status AddSealed(ShardIndex::Checkpoints& checkpoints);
  // Moves shards to the trash of which little is known: a damaged one, or one whose header is.
  absl::Status MoveDamaged(const ShardManifest& shard,
                           absl::FunctionRef<absl::Status(const std::string& to)> move) const;

  const std::string job_;
  const std::string directory_;
  Trash* const trash_;
  DiskFaults* const faults_;
  std::unique_ptr<CheckpointStore> store_;
  int64_t listed_generation_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_JOB_STORE_H_
