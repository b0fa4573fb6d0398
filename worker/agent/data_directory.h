// The data directory of a daemon: its lock, the number of its life, the directory of its sockets,
// and which stores of coordinators it has obeyed.
//
// Provenance records, for each job here, the newest order and the store that gave it. Work that
// another store, or an earlier epoch of the same store, ordered is not the present coordinator's to
// remove: it is reported as an orphan (docs/decisions/0008-whose-store.md). Its records are read
// at the start and then only written: queries are answered from memory.
//
// On disk, below the data directory:
//   LOCK            locked while a daemon uses the directory
//   incarnation     the number of the latest life
//   run-directory   path of the socket directory, which is short, because a socket's path has at
//                   most 107 bytes, and readable by this user alone. A killed life leaves it
//                   behind; the next one removes it.
//   stores          a line "ID EPOCH SEQUENCE EPOCH-ID LIFE MAC" for each store, as it was when
//                   ranks were last ordered or shards accepted; the store followed now is last
//   jobs/JOB/order  the newest order of a job as v1.Orphan and its CRC-32C; `running` is set if it
//                   was to run ranks, and not only to store copies. One that cannot be read
//                   counts as unknown: the job is an orphan, and is never dropped.
//
// Ownership: values and the files, which no other process uses while the lock is taken.
// Thread-safety: all methods of Provenance from any thread; only those that say so wait for the
// disk. The rest is for one thread.
#ifndef NIBBLE_WORKER_AGENT_DATA_DIRECTORY_H_
#define NIBBLE_WORKER_AGENT_DATA_DIRECTORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/file_lock.h"
#include "common/files/files.h"
#include "common/mutex.h"
#include "common/protocol/store_identity.h"
#include "proto/nibble/v1/worker_link.pb.h"

namespace nibble {

// The first line of a file; empty if it cannot be read.
std::string FirstLine(const std::string& path);

// The lock that keeps other daemons off the directory. Unavailable if another daemon has it.
absl::StatusOr<FileLock> LockDataDirectory(const std::string& data_directory);

// A number greater than that of any earlier life in this directory, recorded in it.
absl::StatusOr<int64_t> ChooseIncarnation(const std::string& data_directory);

class RunDirectory {
 public:
  // Errors name the path that cannot be made.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Claim(const std::string& data_directory);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  RunDirectory(std::string path, std::string note);

  const std::string path_;
  const std::string note_;
};

class Provenance {
 public:
  using Clock = std::function<int64_t()>;  // milliseconds, monotonic

  // `faults` may be null.
  Provenance(std::string data_directory, Clock clock, DiskFaults* faults = nullptr);
  Provenance(const Provenance&) = delete;
  Provenance& operator=(const Provenance&) = delete;

  enum class Verdict {
    kObey,
    kOlder,  // than this worker has known the store, or another history of it: ignore it
    kNotFollowed,  // ignore the desired state; obey the next one after Follow
  };
  // A desired state of `store` has arrived.
  Verdict Judge(const v1::StoreIdentity& store);
  // Follows the store from now on. Durable on return; waits for the disk.
  absl::Status Follow(const v1::StoreIdentity& store);
  // Records durably how far the followed store has advanced, before anyone relies on shards that it
  // accepted. By that record a later life, too, recognises a store restored to an earlier state.
  // Waits for the disk.
  absl::Status Remember();
  // The store followed now, in its newest known state; unset: none yet.
  v1::StoreIdentity followed() const;

  // Records that `store` ordered the gang. Durable on return; waits for the disk.
  absl::Status RecordOrder(const v1::DesiredGang& gang, const v1::StoreIdentity& store);
  // Makes the effects of Forget and Answered durable; waits for the disk. What cannot be written is
  // tried again at the next call.
  absl::Status SaveChanges();
  // Notes what the followed store knows of a job whose checkpoints are stored here. Returns whether
  // SaveChanges has to make it durable, before a copy of it is stored.
  bool NoteJob(const v1::JobOrder& job, const v1::StoreIdentity& store);
  // The store of the job's newest order; unset id: unknown.
  v1::StoreIdentity StoreOf(const std::string& job) const;
  // The attempt of the job's newest order to run ranks here; 0: none is known.
  int64_t AttemptOf(const std::string& job) const;
  // Forgets the job's order; call it when no rank or shard of the job needs it.
  void Forget(const std::string& job);

  // Adds the shards to the report, those of other stores as orphans, and the orders that the
  // followed store did not give in its present epoch. `running`: jobs with ranks, and their
  // attempts.
  void Describe(std::vector<v1::ShardReport> shards, const std::map<std::string, int64_t>& running,
                v1::ConnectRequest& report);
  // The followed store has answered a described report, so it knows the attempts in it. Its own
  // earlier orders without ranks or shards here move to its present epoch.
  void Answered();

 private:
  struct Stores {
    std::map<std::string, v1::StoreIdentity> known;  // by id, in their newest known state
    std::string followed;                            // id

    static bool Exceeds(const v1::StoreIdentity& store, const v1::StoreIdentity& known);
    // Whether it is older than it was known, or of another history.
    bool IsOlder(const v1::StoreIdentity& store) const;
    // Returns IsOlder.
    bool Follow(const v1::StoreIdentity& store);
    // Unset: none.
    v1::StoreIdentity Followed() const;
  };

  std::string OrderPath(const std::string& job) const;
  // Returns whether it differs from the known order.
  bool Note(v1::Orphan order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoadStores();
  void LoadOrders();
  absl::Status WriteStores(const Stores& stores) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mutex_);
  // Makes the job's file equal to its order in memory.
  absl::Status SaveOrder(const std::string& job);

  const std::string directory_;
  const Clock clock_;
  DiskFaults* const faults_;
  // Orders the writes of the files. Held during I/O.
  Mutex disk_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  // Never held during I/O.
  mutable Mutex mutex_;
  Stores stores_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::Orphan> orders_ ABSL_GUARDED_BY(mutex_);  // by job
  std::set<std::string> unsaved_ ABSL_GUARDED_BY(mutex_);             // jobs
  // Since when a job is an orphan, by the clock.
  std::map<std::string, int64_t> since_ms_ ABSL_GUARDED_BY(mutex_);
  // Jobs described last without ranks or shards.
  std::set<std::string> settled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_DATA_DIRECTORY_H_
