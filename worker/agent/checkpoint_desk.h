// The checkpoints that this worker has shards of: a store for each job, a host for each attempt
// whose ranks run here, and between them the coordinator, which alone decides what is a checkpoint.
//
//   1. the ranks' shards are sealed                       durable, not visible
//   2. the checkpoint's header is put beside the store    durable: what 5 needs after a crash
//   3. the shards are in the daemon's reports             until the coordinator has answered
//   4. the answer: accepted or dropped                    dropped ones are removed
//   5. once every shard of the world is here and accepted, the store commits the checkpoint: ranks
//      can load it
//
// Of a gang on several workers each keeps the shards of its own ranks; the rest comes as copies
// (shard_fetcher.h), which are sealed, reported and kept in the same way. A crash between any two
// steps is made good when the store is opened again: what is sealed and has a header is reported
// again, what has none was never reported and goes.
//
// Where a job's directory is removed underneath, it is made again, and what was in it is no longer
// reported: looked for with each report.
//
// Every checkpoint here is of the coordinator's store that ordered it (provenance.h); which one, is
// durable before its shards are reported. Only an answer that follows from that store, in the same
// epoch, accepts or drops them; TakeOver makes them another's, RemoveOrphans drops them whatever
// any answer says.
//
// An answer is to the reports up to `answered`: a shard that was first named in one of those, and
// that the answer does not drop, is accepted. A host tells its ranks that a checkpoint is stored
// when all of their shards are: those of other workers may not be there yet.
//
// Ownership: owns stores, hosts and a thread, which does what answers ask for. Thread-safety: all
// methods from any thread; `changed` and `log` are called with nothing locked.
#ifndef NIBBLE_WORKER_AGENT_CHECKPOINT_DESK_H_
#define NIBBLE_WORKER_AGENT_CHECKPOINT_DESK_H_

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

class CheckpointDesk {
 public:
  struct Options {
    CheckpointHost::Clock clock;
    std::string run_directory;  // of the hosts' sockets; empty: the system's temporary one
    // Whose order the ranks of a job follow that run here, and whose order copies are brought by;
    // null: nobody's that is known. Called with nothing locked.
    std::function<v1::StoreIdentity(const std::string& job)> ordered_by;
    std::function<v1::StoreIdentity()> followed;
    // An answer accepts shards: what it follows from is to be remembered, durably; may be null.
    std::function<absl::Status()> accepted;
    std::function<void()> changed;                // there is something to report; may be null
    std::function<void(const std::string&)> log;  // a line for people; may be null
  };
  explicit CheckpointDesk(Options options);
  // What waits for an answer stays sealed, and waits again in the next life. No rank lives.
  ~CheckpointDesk();
  CheckpointDesk(const CheckpointDesk&) = delete;
  CheckpointDesk& operator=(const CheckpointDesk&) = delete;

  // Opens the job's store, or makes it: `directory`/checkpoints. Again does nothing. Errors as
  // CheckpointStore::Open.
  absl::Status OpenJob(const std::string& job, const std::string& directory,
                       const StoreIdentity& identity);

  // Where the ranks of an attempt that run here hand over their checkpoints. Aborted for a stale
  // attempt.
  absl::StatusOr<std::string> OpenAttempt(const std::string& job, int64_t attempt,
                                          int32_t first_rank, int32_t ranks);
  // After its ranks are gone. What it has reported goes on waiting for its answer.
  void CloseAttempt(const std::string& job, int64_t attempt);
  // What a checkpoint of the attempt waits for, such as room on the disk; empty: nothing.
  std::string TroubleOf(const std::string& job, int64_t attempt) const;

  // Every shard here that waits for an answer or is held, for report `number` of a stream; 1 begins
  // a stream. One that an answer has dropped is not among them, unless it could not be: then it is
  // again, once that is known.
  std::vector<v1::ShardReport> Report(int64_t number);
  // An answer has come, of the stream that was last reported to. Does not wait for the disk.
  void Answered(const v1::ConnectResponse& response);
  // The present store knows the shard as it is here: it holds it by that store's order from now on.
  // Does not wait for the disk.
  void TakeOver(const v1::DesiredReplica& known, const v1::StoreIdentity& store);
  // Drops what is here of the job by orders of the store with this id, but for its epoch `kept`.
  void RemoveOrphans(const std::string& job, const std::string& store_id, int64_t kept);
  // Until all that answers have asked for is done.
  void AwaitSettled();

  // --- Reading. NotFound for what is not here, DataLoss for what is damaged. What is open stays
  // readable where its files are moved or removed.

  // A checkpoint of which every shard is here.
  absl::StatusOr<std::shared_ptr<const CheckpointReader>> Open(const v1::CheckpointRef& ref) const;
  absl::StatusOr<std::unique_ptr<ShardReader>> OpenShard(const v1::CheckpointRef& ref,
                                                         int32_t rank) const;
  absl::StatusOr<CheckpointHeader> HeaderOf(const v1::CheckpointRef& ref) const;
  // Its CRC if it is here, as it was reported.
  absl::StatusOr<uint32_t> CrcOf(const v1::CheckpointRef& ref, int32_t rank) const;

  // --- Copies. The reference says under which job they are kept.

  // Nothing of the checkpoint is dropped while one lives.
  using Lease = std::shared_ptr<const void>;
  Lease Keep(const v1::CheckpointRef& ref);
  // The coordinator has taken what is here of it.
  void Accept(const v1::CheckpointRef& ref);
  absl::StatusOr<std::unique_ptr<ShardWriter>> BeginCopy(const std::string& job,
                                                         const ShardManifest& original);
  // A copy is sealed; from now on it is reported, unless it is `input`: then it is there for those
  // who keep it, and nobody else.
  absl::Status TakeCopy(const std::string& job, const CheckpointHeader& header,
                        const ShardManifest& sealed, bool input);
  // A shard that was found damaged is no longer held.
  absl::Status RemoveDamaged(const v1::CheckpointRef& ref, int32_t rank);
  // Sees that ranks can load it, by its step: commits it if it is not, and takes another attempt's
  // checkpoint of the same step out of the way. NotFound names shards that are not here.
  absl::Status MakeLoadable(const v1::CheckpointRef& ref);

 private:
  struct Job {
    std::string directory;
    std::unique_ptr<CheckpointStore> store;
    int64_t generation = 0;  // of the store, when what is here was looked up
    std::map<int64_t, std::unique_ptr<CheckpointHost>> hosts;  // by attempt
  };
  using Key = std::tuple<std::string, int64_t, int64_t>;  // job, step, attempt
  struct Shard {
    v1::ShardReport report;
    bool accepted = false;
    int64_t first_report = 0;  // of this stream, that named it; 0: none yet
  };
  // What is here of one checkpoint.
  struct Entry {
    CheckpointHeader header;
    std::map<int32_t, Shard> shards;  // by rank
    bool committed = false;           // in the store; then every shard was here
    bool awaited = false;             // by a host's commit
    bool input = false;
    bool complained = false;  // by SayOnce
    v1::StoreIdentity store;  // whose order it is here by

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
  // Everything of the job that waits or is held is gone, or another now. With surgery_mutex_ and
  // mutex_ held; the number of shards that are no longer here.
  absl::StatusOr<size_t> LookUpAgain(const std::string& name, Job& job);
  void Drop(const Key& key, const std::set<int32_t>& ranks);

  // Beside the job's store, durably.
  absl::Status WriteHeader(const std::string& job, const CheckpointHeader& header) const;
  absl::Status WriteStore(const Key& key, const v1::StoreIdentity& store) const;
  void MakeTakenOver(const Key& key, const v1::StoreIdentity& store);
  // With surgery_mutex_ held and mutex_ not.
  absl::Status CommitHere(const Key& key);
  absl::Status ReopenHere(const Key& key);
  void Forget(const Key& key);  // its header, and that it is here
  void Release(const Key& key);
  void Say(const std::string& line) const;
  // What answers ask for again until it succeeds: said once.
  void SayOnce(const Key& key, const char* what, const absl::Status& status);
  CheckpointStore* FindStore(const std::string& job, std::string* directory) const;
  // With mutex_ held.
  bool IsBeingDropped(const Key& key, int32_t rank) const;
  static Key KeyOf(const v1::CheckpointRef& ref);

  const Options options_;
  std::mutex closing_mutex_;  // one CloseAttempt at a time; before all others
  // One change of what a store has at a time, and nothing is opened meanwhile; before mutex_.
  mutable std::mutex surgery_mutex_;
  mutable std::mutex mutex_;
  std::condition_variable settled_changed_;
  std::condition_variable todo_changed_;
  // Guarded by mutex_. Jobs stay once they are open.
  bool closing_ = false;
  std::set<std::pair<std::string, int64_t>> closed_;  // attempts that are being closed
  std::map<std::pair<std::string, int64_t>, std::string> troubles_;  // by attempt
  std::map<std::string, Job> jobs_;
  std::map<Key, Entry> shelf_;
  std::map<Key, int> leases_;
  std::map<Key, CommitResult> settled_;  // for the host that waits
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

#endif  // NIBBLE_WORKER_AGENT_CHECKPOINT_DESK_H_
