// What connected workers last reported of checkpoints that are not in the catalogue: their trash,
// and shards that they store. It is known from reports alone; after a restart of the coordinator
// the workers report it again.
//
// Ownership: owns its contents. Thread-safety: all methods; they call no other object but the
// functions that are passed to them, so any lock may be held around them.
#ifndef NIBBLE_SERVER_CONTROLLER_TRASH_REGISTRY_H_
#define NIBBLE_SERVER_CONTROLLER_TRASH_REGISTRY_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/decide.h"

namespace nibble {

class TrashRegistry {
 public:
  // Whether a stored shard's checkpoint is of a known job and not in the catalogue.
  using IsLoose = absl::FunctionRef<bool(const v1::ShardReport&)>;

  // Takes the shards of a report. One that has all replaces what is known of the worker; of more
  // than kMaxTrashedShards in its trash those that were deleted last are kept.
  void Take(const std::string& worker, const v1::ConnectRequest& report, IsLoose is_loose);
  // The worker is about to be ordered to delete the shard: until it reports it again it may not
  // count on its being stored.
  void NoteDropped(const std::string& worker, const v1::CheckpointRef& ref, int32_t rank);
  // The worker is away.
  void Forget(const std::string& worker);

  // What workers have of the job.
  std::vector<LooseShard> Of(const std::string& job) const;
  // Jobs of which the worker stores shards that are not in the catalogue.
  std::set<std::string> StoredJobs(const std::string& worker) const;
  // Checkpoints of which the worker has shards in its trash, by key.
  std::vector<v1::CheckpointRef> TrashOn(const std::string& worker) const;
  int64_t TrashBytes(const std::string& worker) const;
  // The trash of all workers by checkpoint key, then worker; of one job unless it is empty.
  using ByWorker = std::map<std::string, std::vector<v1::TrashedShard>>;
  std::map<std::string, ByWorker> Trash(const std::string& job) const;

 private:
  struct Holding {
    std::map<std::string, std::vector<v1::TrashedShard>> trash;  // by checkpoint key, then rank
    std::map<std::string, v1::ShardReport> stored;               // by shard key
    int64_t trash_bytes = 0;
  };

  static void SetTrash(const v1::ConnectRequest& report, Holding& holding);

  mutable Mutex mutex_;
  std::map<std::string, Holding> holdings_ ABSL_GUARDED_BY(mutex_);  // by worker
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_TRASH_REGISTRY_H_
