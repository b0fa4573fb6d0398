// The shards that this worker stores, in memory: what reports name, what the coordinator's answers
// accept and drop, and what these answers require on disk (Work). CheckpointRegistry carries that
// out.
//
// An answer covers the reports of its stream up to `answered`: it accepts each shard that was first
// named in one of those, unless it drops the shard. Only an answer from the coordinator store that
// ordered a checkpoint, in the same epoch, accepts or drops its shards; it drops them only after a
// report of the stream was durably received, and by an order of that epoch. TakeOver assigns a
// checkpoint to another store; RemoveOrphans drops shards whatever any answer contains.
//
// Ownership: values. Thread-safety: one thread at a time; nothing here waits or does I/O.
#ifndef NIBBLE_WORKER_AGENT_SHARD_INDEX_H_
#define NIBBLE_WORKER_AGENT_SHARD_INDEX_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {

// --- A shard as peers and the coordinator know it

// The bytes of a shard's manifest, and their CRC-32C. They exclude the names of the files that
// store the shard, which differ between replicas, and the record's own checksum, because the
// CRC-32C of bytes that end with their CRC-32C is a constant.
std::string ShardManifestBytes(const ShardManifest& shard);
uint32_t ShardManifestCrc(const ShardManifest& shard);
// DataLoss if the bytes are not a manifest.
absl::StatusOr<ShardManifest> ShardManifestFrom(const std::string& bytes);

v1::ShardReport ShardReportOf(const std::string& job, const ShardManifest& shard, int32_t world);

// --- The index

struct CheckpointKey {
  std::string job;
  int64_t step = 0;
  int64_t attempt = 0;

  friend auto operator<=>(const CheckpointKey&, const CheckpointKey&) = default;
};
CheckpointKey KeyOf(const v1::CheckpointRef& ref);
// "checkpoint of gpt-1, step 10, attempt 2"
std::string Describe(const CheckpointKey& key);

// Why a shard is removed from its store.
struct Deletion {
  v1::DeletionKind kind = v1::DELETION_KIND_UNSPECIFIED;
  std::string reason;
  v1::StoreIdentity order;  // epoch and update that ordered it; unset: this worker decided
};
using Deletions = std::map<int32_t, Deletion>;  // by rank

// The shards here of one checkpoint.
struct StoredCheckpoint {
  struct Shard {
    v1::ShardReport report;
    bool accepted = false;
    int64_t first_report = 0;  // of this stream that named it; 0: none yet
  };

  CheckpointHeader header;
  std::map<int32_t, Shard> shards;  // by rank
  v1::StoreIdentity store;          // that ordered it
  int64_t generation = 0;           // of the job's directory when the shards were stored
  bool committed = false;           // on disk; then every shard was here
  bool awaited = false;             // ranks here wait for the coordinator's decision
  bool input = false;               // only for the holders of a lease, and never reported
  bool failure_logged = false;

  bool complete() const { return static_cast<int32_t>(shards.size()) == header.world; }
  bool accepted() const;  // every shard here is
};

class ShardIndex {
 public:
  using Checkpoints = std::map<CheckpointKey, StoredCheckpoint>;
  struct Work {  // of one job
    std::map<CheckpointKey, v1::StoreIdentity> take_over;
    std::map<CheckpointKey, Deletions> drop;
    std::set<CheckpointKey> settle;  // checkpoints that were accepted
  };
  struct Replaced {
    size_t lost = 0;                     // shards
    std::vector<CheckpointKey> awaited;  // removed checkpoints that ranks wait for
  };

  // Null if no shard of it is here.
  StoredCheckpoint* Find(const CheckpointKey& key);
  const StoredCheckpoint* Find(const CheckpointKey& key) const;
  StoredCheckpoint& FindOrAdd(const CheckpointKey& key) { return checkpoints_[key]; }
  void Add(Checkpoints checkpoints) { checkpoints_.merge(checkpoints); }
  void Remove(const CheckpointKey& key) { checkpoints_.erase(key); }
  // Other committed checkpoints of the same job and step.
  std::vector<CheckpointKey> CommittedRivals(const CheckpointKey& key) const;
  // Step of the newest checkpoint of the job with an accepted shard that is not to be dropped; of
  // this epoch, unless that is null; -1: none.
  int64_t NewestAccepted(const std::string& job, const v1::StoreIdentity* epoch) const;
  // The job's directory was removed and made again as `generation`, which contains `present`:
  // removes checkpoints of earlier generations.
  Replaced ReplaceJob(const std::string& job, int64_t generation, Checkpoints present);

  // --- Reports and answers

  // Every shard for report `number` of a stream; 1 begins a stream. Excludes shards that are to be
  // dropped.
  std::vector<v1::ShardReport> Report(int64_t number);
  // Returns lines for people.
  std::vector<std::string> Answered(const v1::ConnectResponse& response);
  // The coordinator has accepted the shards of it that are here.
  void Accept(const CheckpointKey& key);
  // `store` knows this shard: once that is on disk, its checkpoint belongs to that store.
  void TakeOver(const v1::DesiredReplica& known, const v1::StoreIdentity& store);
  // Drops the job's shards that the store with this id ordered, except those of the epoch of `by`,
  // the store that orders it.
  void RemoveOrphans(const std::string& job, const std::string& store_id,
                     const v1::StoreIdentity& by);

  // --- Leases: a checkpoint that has one is not dropped.

  void AddLease(const CheckpointKey& key) { ++leases_[key]; }
  // After the last lease, an `input` checkpoint is to be dropped.
  void ReleaseLease(const CheckpointKey& key);
  bool HasLease(const CheckpointKey& key) const { return leases_.contains(key); }

  // --- Work: that of each job is carried out apart from the others'.

  bool HasWork(const std::string& job) const { return work_.contains(job); }
  // The job's shards to drop stay excluded from reports until FinishWork.
  Work BeginWork(const std::string& job);
  void FinishWork(const std::string& job) { begun_.erase(job); }

 private:
  bool IsToBeDropped(const CheckpointKey& key, int32_t rank) const;
  void DropAll(const CheckpointKey& key, const StoredCheckpoint& checkpoint,
               const Deletion& deletion);

  Checkpoints checkpoints_;
  std::map<CheckpointKey, int> leases_;  // their number
  std::map<std::string, Work> work_;     // by job; none is empty
  std::map<std::string, Work> begun_;    // and not finished
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_SHARD_INDEX_H_
