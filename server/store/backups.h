// Backups of a store: a directory of incremental copies, made while the store is in use
// (docs/formats/coordinator-store.md).
//
// Each backup has a number, and everything that was durable when it began. Backups share the table
// files that did not change in between; every file has a checksum, which is verified when the
// backup is made, checked and restored. A restored store carries a mark, so that the coordinator
// begins a new epoch (decision 0008) before it serves.
//
// Ownership: values. Thread-safety: free functions. One process at a time adds to a directory,
// which a lock enforces; a check or restore that runs while a backup is removed fails and can be
// repeated.
#ifndef NIBBLE_SERVER_STORE_BACKUPS_H_
#define NIBBLE_SERVER_STORE_BACKUPS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rocksdb {
class FileSystem;
}  // namespace rocksdb

namespace nibble {

class StoreDb;

struct StoreBackup {
  uint32_t id = 0;  // from 1, ascending
  absl::Time made;  // by the wall clock
  std::string cluster;
  uint64_t last_sequence = 0;  // has all batches up to this one, and perhaps later ones
  uint64_t bytes = 0;          // of its files, including those that it shares
};

struct StoreBackups {
  std::vector<StoreBackup> intact;  // complete by names and sizes; oldest first
  struct Damaged {
    uint32_t id;
    absl::Status why;  // names the file
  };
  std::vector<Damaged> damaged;
};

// NotFound if the directory does not exist.
absl::StatusOr<StoreBackups> ListBackups(const std::string& directory);

// Reads the whole backup. DataLoss names the file that is missing or damaged; NotFound lists the
// backups that there are; FailedPrecondition for a backup of a newer format version.
absl::Status CheckBackup(const std::string& directory, uint32_t id);

// Restores a backup (0: the newest) as the store in the directory `path`, which must not exist or
// be empty, and reads all of it. Errors as CheckBackup and RocksStore::Open; then nothing remains
// in `path`. AlreadyExists if `path` has files. Durable on return; if the power fails before,
// `path` is no store or the whole one. `fs`: what it is written through; null: the system's files.
absl::StatusOr<StoreBackup> RestoreBackup(const std::string& directory, uint32_t id,
                                          const std::string& path,
                                          std::shared_ptr<rocksdb::FileSystem> fs = nullptr);

// Whether the store in the directory `path` was restored and no epoch has begun since.
bool IsRestored(const std::string& path);
// Forgets that, durably: its new epoch is durable.
absl::Status ClearRestored(const std::string& path);

// For RocksStore::AddBackup, which specifies it.
absl::StatusOr<StoreBackup> AddBackup(const StoreDb& db, const std::string& cluster,
                                      uint64_t last_sequence, const std::string& directory,
                                      int keep);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_BACKUPS_H_
