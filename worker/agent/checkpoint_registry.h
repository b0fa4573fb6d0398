// The registry of the checkpoints that this worker stores shards of: a store for each job, and a
// host for each attempt whose ranks run here. The coordinator alone decides what becomes a
// checkpoint.
//
//   1. the ranks' shards are sealed                           durable, not visible
//   2. the checkpoint's header is written beside the store    durable; a crash before 5 needs it
//   3. the daemon's reports name the shards                   until the coordinator has answered
//   4. the answer accepts or drops them                       dropped shards go to the trash
//   5. once every shard of the world is here and accepted, the store commits the checkpoint, and
//      ranks can load it
//
// If a gang spans several workers, each stores the shards of its own ranks and fetches replicas of
// the others (shard_fetcher.h), which are sealed, reported and stored in the same way. After a
// crash between two steps, opening the store recovers: a sealed shard with a header is reported
// again; one without was never reported and is removed.
//
// If a job's directory is removed underneath, it is made again, and its shards are no longer
// reported. Each report triggers that check.
//
// Every checkpoint here belongs to the coordinator store that ordered it (Provenance), which is
// recorded durably before its shards are reported. A host reports a checkpoint as stored to its
// ranks as soon as all of their shards are accepted; those of other workers may follow later.
//
// Four parts: ShardIndex decides what reports name and what answers require, in memory; JobStore is
// one job's disk; Trash has what was deleted; this class has the hosts, the locks, and for each job
// the thread that carries out the answers about it on the disk.
//
// A sealed shard is deleted at once only if plain retention drops it and an accepted checkpoint of
// a later step, of the same epoch, stays here; all others go to the trash, except `input` replicas.
//
// Ownership: owns stores, hosts and threads; borrows the trash. Thread-safety: all methods from any
// thread; callbacks are called with no lock taken. Report, Answered, TakeOver, RemoveOrphans,
// TroubleOf, HeaderOf and CrcOf never wait for the disk; AwaitSettled waits for those of all jobs;
// the others may wait for that of their job alone. Answers about one job are carried out in their
// order, and wait for no other job's disk.
#ifndef NIBBLE_WORKER_AGENT_CHECKPOINT_REGISTRY_H_
#define NIBBLE_WORKER_AGENT_CHECKPOINT_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/files.h"
#include "common/mutex.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/job_store.h"
#include "worker/agent/shard_index.h"
#include "worker/agent/trash.h"
#include "worker/checkpoint/checkpoint_host.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_reader.h"
#include "worker/checkpoint/shard_writer.h"

namespace nibble {

class CheckpointRegistry {
 public:
  struct Options {
    CheckpointHost::Clock clock;
    // The store that ordered the ranks of a job here, and the one that orders replicas; null:
    // unknown.
    std::function<v1::StoreIdentity(const std::string& job)> ordered_by;
    std::function<v1::StoreIdentity()> followed;
    // Called by any job's thread when an answer accepts shards, to record durably the state it
    // follows from; may be null.
    std::function<absl::Status()> accepted;
    Trash* trash = nullptr;                       // needed where anything is deleted
    std::function<void()> changed;                // there is something to report; may be null
    std::function<void(const std::string&)> log;  // a line for people; may be null
    DiskFaults* faults = nullptr;                 // for tests
  };
  explicit CheckpointRegistry(Options options);
  // Shards without an answer stay sealed and are reported again in the next life. All ranks must
  // have ended.
  ~CheckpointRegistry();
  CheckpointRegistry(const CheckpointRegistry&) = delete;
  CheckpointRegistry& operator=(const CheckpointRegistry&) = delete;

  // Opens the job's store in `directory`/checkpoints, or makes it. Idempotent. Errors as
  // CheckpointStore::Open.
  absl::Status OpenJob(const std::string& job, const std::string& directory,
                       const StoreIdentity& identity);

  // Receives the snapshots of an attempt's ranks on this worker; `ranks` is their number. The sink
  // lives until CloseAttempt. Aborted for a stale attempt.
  absl::StatusOr<SnapshotSink*> OpenAttempt(const std::string& job, int64_t attempt, int32_t ranks);
  // Call it after the ranks have ended and their link is gone. Shards that were reported still
  // await their answer.
  void CloseAttempt(const std::string& job, int64_t attempt);
  // What blocks a checkpoint of the attempt, such as a full disk; empty: nothing.
  std::string TroubleOf(const std::string& job, int64_t attempt) const;

  // Every shard here, accepted or not, for report `number` of a stream; 1 begins a stream. Excludes
  // shards that an answer has dropped; one whose removal failed is reported again.
  std::vector<v1::ShardReport> Report(int64_t number);
  // Takes an answer on the stream that was last reported to.
  void Answered(const v1::ConnectResponse& response);
  // The present store knows the shard with these bytes: its checkpoint is assigned to that store.
  void TakeOver(const v1::DesiredReplica& known, const v1::StoreIdentity& store);
  // Drops the job's shards that the store with this id ordered, except those of the epoch of `by`,
  // the store that orders it.
  void RemoveOrphans(const std::string& job, const std::string& store_id,
                     const v1::StoreIdentity& by);
  // Waits until all answers so far have been carried out.
  void AwaitSettled();

  // --- Reading. NotFound if it is not here, DataLoss if it is damaged. An open reader stays valid
  // when its files are moved or removed.

  // A checkpoint whose shards are all here.
  absl::StatusOr<std::shared_ptr<const CheckpointReader>> Open(const v1::CheckpointRef& ref) const;
  absl::StatusOr<std::unique_ptr<ShardReader>> OpenShard(const v1::CheckpointRef& ref,
                                                         int32_t rank) const;
  absl::StatusOr<CheckpointHeader> HeaderOf(const v1::CheckpointRef& ref) const;
  // The CRC of its manifest, as reported.
  absl::StatusOr<uint32_t> CrcOf(const v1::CheckpointRef& ref, int32_t rank) const;

  // --- Replicas. They are stored under the job that the reference names.

  // No shard of the checkpoint is dropped while a lease is alive.
  using Lease = std::shared_ptr<const void>;
  Lease Keep(const v1::CheckpointRef& ref);
  // The coordinator has accepted the shards of it that are here.
  void Accept(const v1::CheckpointRef& ref);
  absl::StatusOr<std::unique_ptr<ShardWriter>> BeginReplica(const std::string& job,
                                                            const ShardManifest& original);
  // Registers a sealed replica. It is reported from now on, unless it is `input`: then it exists
  // only for the holders of a lease.
  absl::Status AddReplica(const std::string& job, const CheckpointHeader& header,
                          const ShardManifest& sealed, bool input);
  // Moves a shard that was found damaged to the trash.
  absl::Status RemoveDamaged(const v1::CheckpointRef& ref, int32_t rank);
  // Makes it loadable by its step: commits it if necessary, and reopens another attempt's committed
  // checkpoint of the same step. NotFound names the shards that are not here.
  absl::Status MakeLoadable(const v1::CheckpointRef& ref);
  // Links the files of the checkpoint, which is loadable, in `directory`, under the name that it
  // has in its store. NotFound if it is not here.
  absl::Status LinkInto(const v1::CheckpointRef& ref, const std::string& directory) const;

  // --- The trash

  // Restores the checkpoint's shards from the trash: they are sealed, not accepted, and reported.
  // Those that are here stay. The job's store is open. What fails is logged.
  void Restore(const v1::CheckpointRef& ref);
  // Frees about this space of the trash on a full disk; false if there is nothing to free.
  bool MakeRoom(int64_t bytes);
  // As Trash::NewestStored.
  int64_t NewestAccepted(const std::string& job) const;

 private:
  using CommitResult = absl::StatusOr<CheckpointStore::CommitReport>;
  using Attempt = std::pair<std::string, int64_t>;  // job, attempt

  // Called by the hosts' threads: waits for the coordinator's decision.
  CommitResult Commit(const std::string& job, const CheckpointHeader& header,
                      std::vector<ShardManifest> shards);
  void SetTrouble(const Attempt& attempt, const std::string& trouble);

  // A job whose store is open. `check_directory` and `working` are guarded by mutex_.
  struct Job {
    std::unique_ptr<JobStore> store;
    std::thread thread;            // CarryOutAnswers
    CondVar work_added;            // or this is closing
    bool check_directory = false;  // a report was made
    bool working = false;          // the thread has work that it took
    bool unstorable = false;       // and that is logged; used by the thread alone
  };

  // A job's thread, and the parts of the answers that it carries out.
  void CarryOutAnswers(const std::string& name, Job& job);
  void CheckDirectory(const std::string& name, Job& job);
  void MakeTakenOver(const CheckpointKey& key, const v1::StoreIdentity& store);
  absl::Status Drop(const CheckpointKey& key, const Deletions& deletions);
  void Settle(const CheckpointKey& key);

  // `disk`: DiskOf the checkpoint's job.
  absl::Status CommitHere(const CheckpointKey& key, Mutex& disk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk);
  absl::Status ReopenHere(const CheckpointKey& key, Mutex& disk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk);
  // Deletes the sealed shards of these ranks, which are in the index, most of them to the trash;
  // and the files beside the store with the last one.
  absl::Status DeleteHere(const CheckpointKey& key, const Deletions& deletions, Mutex& disk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk);
  absl::Status MoveToTrash(const StoredCheckpoint& checkpoint, int32_t rank,
                           const Deletion& deletion);
  // Moves other committed checkpoints of the step to the trash; leased ones are only reopened.
  absl::Status RemoveRivals(const CheckpointKey& key, Mutex& disk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk);
  // Moves the sealed shards of a checkpoint that has failed here to the trash.
  absl::Status Abandon(const CheckpointKey& key, const CheckpointHeader& header);
  // Moves the sealed shards of the checkpoint that are not in the index to the trash; `known`: what
  // is known of it, without shards.
  absl::Status DeleteUnlisted(const CheckpointKey& key, StoredCheckpoint known,
                              const Deletion& deletion, Mutex& disk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk);
  bool IsSettled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeJob(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeAllJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The job's store; null if it is not open.
  JobStore* FindJob(const std::string& job) const;
  // Orders changes of the content of the job's store, and its opening. Held during I/O; acquired
  // before mutex_. It exists as long as this.
  Mutex& DiskOf(const std::string& job) const;
  bool IsCommitted(const CheckpointKey& key) const;
  void ReleaseLease(const CheckpointKey& key);

  void Log(const std::string& line) const;
  void Changed() const;
  // Logs a failure once, because answers repeat the order until it succeeds.
  void LogOnce(const CheckpointKey& key, const char* what, const absl::Status& status);

  const Options options_;
  // Never held during I/O.
  mutable Mutex mutex_;
  CondVar settled_;  // an outcome is known, work is done, or an attempt or this is closing
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  ShardIndex index_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mutex_);  // stay open
  mutable std::map<std::string, std::unique_ptr<Mutex>> disks_ ABSL_GUARDED_BY(mutex_);  // DiskOf
  std::map<Attempt, std::unique_ptr<CheckpointHost>> hosts_ ABSL_GUARDED_BY(mutex_);
  std::set<Attempt> closing_attempts_ ABSL_GUARDED_BY(mutex_);
  std::map<Attempt, std::string> troubles_ ABSL_GUARDED_BY(mutex_);
  std::map<CheckpointKey, CommitResult> outcomes_ ABSL_GUARDED_BY(mutex_);  // for Commit
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_CHECKPOINT_REGISTRY_H_
