// The registry of the checkpoints that this worker stores shards of: a store for each job, and a
// host for each attempt whose ranks run here. The coordinator alone decides what becomes a
// checkpoint.
//
//   1. the ranks' shards are sealed                           durable, not visible
//   2. the checkpoint's header is written beside the store    durable; a crash before 5 needs it
//   3. the daemon's reports name the shards                   until the coordinator has answered
//   4. the answer accepts or drops them                       dropped shards are removed
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
// recorded durably before its shards are reported. Only an answer from that store, in the same
// epoch, accepts or drops them. TakeOver assigns them to another store; RemoveOrphans drops them
// whatever any answer contains.
//
// An answer covers the reports up to `answered`: a shard that was first named in one of those, and
// that the answer does not drop, is accepted. A host reports a checkpoint as stored to its ranks as
// soon as all of their shards are; those of other workers may follow later.
//
// Ownership: owns stores, hosts and a thread, which carries out the answers. Thread-safety: all
// methods from any thread; `changed` and `log` are called with no lock taken.
#ifndef NIBBLE_WORKER_AGENT_CHECKPOINT_REGISTRY_H_
#define NIBBLE_WORKER_AGENT_CHECKPOINT_REGISTRY_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/checkpoint/checkpoint_host.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_reader.h"
#include "worker/checkpoint/shard_writer.h"

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

// --- The registry

class CheckpointRegistry {
 public:
  struct Options {
    CheckpointHost::Clock clock;
    std::string run_directory;  // of the hosts' sockets; empty: the system's
    // The store that ordered the ranks of a job here, and the one that orders replicas; null:
    // unknown. Called with no lock taken.
    std::function<v1::StoreIdentity(const std::string& job)> ordered_by;
    std::function<v1::StoreIdentity()> followed;
    // Called when an answer accepts shards, to record durably the state it follows from; may be
    // null.
    std::function<absl::Status()> accepted;
    std::function<void()> changed;                // there is something to report; may be null
    std::function<void(const std::string&)> log;  // a line for people; may be null
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

  // Starts the host of an attempt's ranks here and returns its address. Aborted for a stale
  // attempt.
  absl::StatusOr<std::string> OpenAttempt(const std::string& job, int64_t attempt,
                                          int32_t first_rank, int32_t ranks);
  // Call it after the ranks have ended. Shards that were reported still await their answer.
  void CloseAttempt(const std::string& job, int64_t attempt);
  // What blocks a checkpoint of the attempt, such as a full disk; empty: nothing.
  std::string TroubleOf(const std::string& job, int64_t attempt) const;

  // Every shard here, accepted or not, for report `number` of a stream; 1 begins a stream. Excludes
  // shards that an answer has dropped; one whose removal failed is reported again.
  std::vector<v1::ShardReport> Report(int64_t number);
  // Takes an answer on the stream that was last reported to. Does not wait for the disk.
  void Answered(const v1::ConnectResponse& response);
  // The present store knows the shard as it is here, so the shard belongs to that store from now
  // on. Does not wait for the disk.
  void TakeOver(const v1::DesiredReplica& known, const v1::StoreIdentity& store);
  // Drops the job's shards that the store with this id ordered, except those of its epoch `kept`.
  void RemoveOrphans(const std::string& job, const std::string& store_id, int64_t kept);
  // Waits until all answers so far are carried out.
  void AwaitSettled();

  // --- Reading. NotFound if it is not here, DataLoss if it is damaged. An open reader stays valid
  // when its files are moved or removed.

  // A checkpoint of which every shard is here.
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
  absl::StatusOr<std::unique_ptr<ShardWriter>> BeginCopy(const std::string& job,
                                                         const ShardManifest& original);
  // Registers a sealed replica. It is reported from now on, unless it is `input`: then it exists
  // only for the holders of a lease.
  absl::Status TakeCopy(const std::string& job, const CheckpointHeader& header,
                        const ShardManifest& sealed, bool input);
  // Discards a shard that was found damaged.
  absl::Status RemoveDamaged(const v1::CheckpointRef& ref, int32_t rank);
  // Makes it loadable by its step: commits it if necessary, and reopens another attempt's committed
  // checkpoint of the same step. NotFound names the shards that are not here.
  absl::Status MakeLoadable(const v1::CheckpointRef& ref);

 private:
  struct Job {
    std::string directory;
    std::unique_ptr<CheckpointStore> store;
    int64_t generation = 0;  // of the store, when the shards were last listed
    std::map<int64_t, std::unique_ptr<CheckpointHost>> hosts;  // by attempt
  };
  using Key = std::tuple<std::string, int64_t, int64_t>;  // job, step, attempt
  struct Shard {
    v1::ShardReport report;
    bool accepted = false;
    int64_t first_report = 0;  // of this stream that named it; 0: none yet
  };
  // The shards here of one checkpoint.
  struct Entry {
    CheckpointHeader header;
    std::map<int32_t, Shard> shards;  // by rank
    bool committed = false;           // in the store; then every shard was here
    bool awaited = false;             // by a host's Commit
    bool input = false;
    bool complained = false;  // SayOnce has logged
    v1::StoreIdentity store;  // that ordered it

    bool complete() const { return static_cast<int32_t>(shards.size()) == header.world; }
    bool accepted() const;
  };
  using CommitResult = absl::StatusOr<CheckpointStore::CommitReport>;

  CommitResult Commit(const std::string& job, const CheckpointHeader& header,
                      std::vector<ShardManifest> shards);
  absl::Status Hold(const std::string& name, const Job& job);
  absl::Status Recover(const std::string& name, Job& job);

  // The thread.
  void SettleAll();
  void Settle(const Key& key);
  void LookForRemoved();
  // Lists the job's shards anew after its directory was removed or replaced; returns the number of
  // lost ones. With surgery_mutex_ and mutex_ held.
  absl::StatusOr<size_t> LookUpAgain(const std::string& name, Job& job);
  void Drop(const Key& key, const std::set<int32_t>& ranks);

  // Beside the job's store, durably.
  absl::Status WriteHeader(const std::string& job, const CheckpointHeader& header) const;
  absl::Status WriteStore(const Key& key, const v1::StoreIdentity& store) const;
  void MakeTakenOver(const Key& key, const v1::StoreIdentity& store);
  // With surgery_mutex_ held and mutex_ not.
  absl::Status CommitHere(const Key& key);
  absl::Status ReopenHere(const Key& key);
  void Forget(const Key& key);  // removes its header and entry
  void Release(const Key& key);
  void Say(const std::string& line) const;
  // Logs a failure once, because answers repeat the order until it succeeds.
  void SayOnce(const Key& key, const char* what, const absl::Status& status);
  CheckpointStore* FindStore(const std::string& job, std::string* directory) const;
  // With mutex_ held.
  bool IsBeingDropped(const Key& key, int32_t rank) const;
  static Key KeyOf(const v1::CheckpointRef& ref);
  static std::string NameOf(const Key& key);  // for people

  const Options options_;
  std::mutex closing_mutex_;  // one CloseAttempt at a time; before all others
  // Serialises changes of a store's content, and openings; before mutex_.
  mutable std::mutex surgery_mutex_;
  mutable std::mutex mutex_;
  std::condition_variable settled_changed_;
  std::condition_variable todo_changed_;
  // Guarded by mutex_. Jobs stay open.
  bool closing_ = false;
  std::set<std::pair<std::string, int64_t>> closed_;  // attempts that are being closed
  std::map<std::pair<std::string, int64_t>, std::string> troubles_;  // by attempt
  std::map<std::string, Job> jobs_;
  std::map<Key, Entry> entries_;
  std::map<Key, int> leases_;
  std::map<Key, CommitResult> settled_;  // for the waiting host
  // For the thread.
  std::set<Key> to_settle_;
  std::map<Key, v1::StoreIdentity> to_take_over_;
  std::map<Key, std::set<int32_t>> to_drop_;
  std::map<Key, std::set<int32_t>> dropping_;  // taken from to_drop_
  bool settling_ = false;
  bool look_for_removed_ = false;
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_CHECKPOINT_REGISTRY_H_
