// One checkpoint on its way into a store: the directory writing-…, and the shards in it that are
// being written or are sealed. It ends as a checkpoint (committed) or as nothing (dropped).
//
// Ownership: shared by the store and its ShardWriters; owns a share of the store's lock, so that
// nobody else writes into the store while a writer lives.
// Thread-safety: all methods from any thread. Commit and Drop are the store's.
#ifndef NIBBLE_WORKER_CHECKPOINT_WRITE_SESSION_H_
#define NIBBLE_WORKER_CHECKPOINT_WRITE_SESSION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/disk.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/store_layout.h"
#include "worker/checkpoint/store_lock.h"

namespace nibble {

class WriteSession {
 public:
  // Makes the directory. `directory.stage` is kWriting.
  static absl::StatusOr<std::shared_ptr<WriteSession>> Create(
      const std::string& store, const StoredDirectory& directory,
      std::shared_ptr<StoreLock> lock, DiskFaults* faults);
  // The sealed shards of a directory that a process left behind; the others are removed. Null, and
  // the directory gone, where there was none.
  static absl::StatusOr<std::shared_ptr<WriteSession>> Recover(
      const std::string& store, const StoredDirectory& directory,
      std::shared_ptr<StoreLock> lock, DiskFaults* faults);

  const StoredDirectory& directory() const { return directory_; }
  const std::string& path() const { return path_; }
  DiskFaults* faults() const { return faults_; }

  // For ShardWriter. Enter: false where the session has ended, FailedPrecondition where the rank is
  // being written; what the rank had sealed is dropped. Leave removes what the rank wrote.
  absl::StatusOr<bool> Enter(int32_t rank);
  void Leave(int32_t rank);
  // Records a closed shard as sealed, durably.
  absl::Status Seal(const ShardManifest& manifest);

  // Where a rank's files are while they are written: its database, and chunk files beside it.
  std::string ShardPath(int32_t rank) const;
  std::string ChunkFilePrefix(int32_t rank) const;

  bool ended() const;
  bool being_written() const;
  std::vector<ShardManifest> sealed() const;

  // Writes the manifest and renames the directory: from here on it is a checkpoint.
  // FailedPrecondition where a shard is still being written, none is sealed, or what is
  // sealed is not what the manifest says. After another error it is as before and may be tried
  // again.
  absl::Status Commit(const Manifest& manifest);
  // Removes one sealed shard, and the directory with the last one. NotFound where it is not here,
  // FailedPrecondition while it is being written.
  absl::Status Remove(int32_t rank);
  // Removes the directory. FailedPrecondition where a shard is still being written.
  absl::Status Drop();

 private:
  struct Shard {
    bool writing = true;
    ShardManifest manifest;  // once it is sealed
  };

  WriteSession(const std::string& store, const StoredDirectory& directory,
               std::shared_ptr<StoreLock> lock, DiskFaults* faults);
  absl::Status CheckAgainst(const Manifest& manifest) const;
  void RemoveFiles(int32_t rank);

  const std::string store_;
  const StoredDirectory directory_;
  const std::string path_;
  const std::shared_ptr<StoreLock> lock_;
  DiskFaults* const faults_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  bool ended_ = false;
  std::map<int32_t, Shard> shards_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_WRITE_SESSION_H_
