// The deleted shards of this worker. They stay on its disk for a while, so that a mistake of a
// coordinator or of a person can be undone (docs/decisions/0043-nothing-is-deleted-at-once.md).
//
// On disk, below the directory, which is on the file system of the stores:
//   JOB/step-…-attempt-…-rank-…-ID/   an entry; IDs grow
//     record                          v1.TrashedShard and its CRC-32C. Its `age_ms` is the time of
//                                     the deletion on the trash's clock, and `kept` is set if the
//                                     coordinator had accepted the shard.
//     header                          the checkpoint's header (EncodeHeader)
//     shard-00000.seal, shard-00000/  the shard, as in a store; moved here by the rename of the
//                                     latter, after everything else is durable
//   JOB/removing-ID/                  an entry whose space is being freed
//   clock                             milliseconds that daemons have run with this trash
//   history, history.1                a line for each shard that came, was restored or was removed
//
// An entry without its database is of a deletion that a crash has cut off: the shard is in its
// store. Ages are counted by the trash's clock, which is stopped while no daemon runs, so setting
// wall clocks removes nothing. An entry whose record cannot be read is logged, is of the age of the
// one after it, and cannot be restored.
//
// Entries are removed by age and by the size of all, the oldest first, except that of each job the
// newest checkpoint stays that was accepted, that no person deleted, and whose copy here is not
// damaged, while the job's store has no accepted checkpoint of the same or a later step.
//
// Ownership: owns the directory. Thread-safety: all methods from any thread. Open, Add, TakeOut,
// Tidy, Free, IdentityOf and the destructor wait for the disk, none of them for another; the others
// do not. No lock of this class is held while a caller's function runs.
#ifndef NIBBLE_WORKER_AGENT_TRASH_H_
#define NIBBLE_WORKER_AGENT_TRASH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/files.h"
#include "common/mutex.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {

class Trash {
 public:
  static constexpr int64_t kDefaultHours = 24;
  static constexpr int64_t kMaxHistoryBytes = int64_t{1} << 20;  // of each of its two files
  static constexpr int64_t kSaveClockEveryMs = 3'600'000;

  struct Options {
    std::string directory;
    int64_t most_age_ms = kDefaultHours * 3'600'000;
    std::optional<int64_t> most_bytes;  // unset: a tenth of the file system
    std::function<int64_t()> clock;     // milliseconds, monotonic
    // Called with the locks of the caller that makes the change, so they only take note.
    std::function<void()> changed;                // List has changed; may be null
    std::function<void(const std::string&)> log;  // a line for people; may be null
    DiskFaults* faults = nullptr;                 // for tests
  };
  // The step of the newest checkpoint of the job that its store has, accepted and not to be
  // dropped; -1: none.
  using NewestStored = absl::FunctionRef<int64_t(const std::string& job)>;

  // Makes the directory if there is none.
  static absl::StatusOr<std::unique_ptr<Trash>> Open(Options options);
  ~Trash();
  Trash(const Trash&) = delete;
  Trash& operator=(const Trash&) = delete;

  // Adds a shard: `move` moves its files to the entry's directory, durably. The record is `shard`,
  // whose `age_ms` is not used; `kept`: it was accepted. After an error the shard is in the trash
  // only if `move` has moved it.
  absl::Status Add(v1::TrashedShard shard, const CheckpointHeader& header,
                   absl::FunctionRef<absl::Status(const std::string& directory)> move);
  // Calls `restore` for each shard of the checkpoint, an undamaged and lately deleted copy first;
  // it moves the files out of the directory, or returns AlreadyExists, and the copy stays. Other
  // errors are logged once for each copy.
  void TakeOut(
      const v1::CheckpointRef& ref,
      absl::FunctionRef<absl::Status(const v1::TrashedShard& shard, const CheckpointHeader& header,
                                     const std::string& directory)>
          restore);
  bool Has(const v1::CheckpointRef& ref) const;
  // Of the checkpoint's job, as its store has it; unset if no header of it can be read.
  std::optional<StoreIdentity> IdentityOf(const v1::CheckpointRef& ref) const;

  // All entries whose records are good, the oldest first.
  std::vector<v1::TrashedShard> List(NewestStored newest) const;
  // Changes whenever entries come or go.
  int64_t version() const;
  // Space on the disk that all entries take.
  int64_t bytes() const;

  // Removes what is too old or too much, and saves the clock now and then.
  void Tidy(NewestStored newest);
  // Removes the oldest entries until `bytes` are free; false if there are none to remove.
  bool Free(int64_t bytes, NewestStored newest);

 private:
  struct Entry {
    v1::TrashedShard record;  // without a ref if it could not be read
    std::string directory;
    int64_t disk_bytes = 0;
    int64_t deleted_ms = 0;  // on the trash's clock
    bool leaving = false;    // is being restored or removed
    bool failure_logged = false;
  };
  using Entries = std::map<int64_t, Entry>;  // by ID

  explicit Trash(Options options);
  absl::Status Load();
  // `foreign`: receives entries whose names have no ID.
  absl::Status LoadJob(const std::string& job, std::vector<Entry>& foreign)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SaveClock();
  int64_t NowMs() const;
  // The entries that age and size may remove, the oldest first.
  std::vector<std::pair<int64_t, Entry>> Removable(NewestStored newest) const;
  // Those of the checkpoint, undamaged and lately deleted ones first.
  std::vector<std::pair<int64_t, Entry>> CopiesOf(const v1::CheckpointRef& ref) const;
  // Marks an entry as leaving; false if it is gone.
  bool Claim(int64_t id);
  void Forget(int64_t id);
  // Removes a claimed entry; `why` for people.
  void Remove(int64_t id, const Entry& entry, const std::string& why);
  // A line in the log and the history.
  void Note(const std::string& line);
  void Changed() const;

  const Options options_;
  int64_t most_bytes_ = 0;
  int64_t clock_base_ms_ = 0;  // of the trash's clock when this began
  const int64_t began_ms_;
  Mutex history_mutex_;  // orders its writes; held during I/O
  // Never held during I/O.
  mutable Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t clock_saved_ms_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_TRASH_H_
