// The store on disk: a directory with a RocksDB database for entities and journal, a marker that
// names the cluster, a lock, and the acknowledged mark (docs/formats/coordinator-store.md).
//
// Batches are made durable by RocksDB's log, synced once per group. Current entities are in tables,
// so opening a store reads no history, and no more log than the write buffers hold.
//
// Ownership: owns the files of its directory while it is open. Thread-safety: that of Store.
#ifndef NIBBLE_SERVER_STORE_ROCKS_STORE_H_
#define NIBBLE_SERVER_STORE_ROCKS_STORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/files/file_lock.h"
#include "common/mutex.h"
#include "server/store/backups.h"
#include "server/store/commit_queue.h"
#include "server/store/store.h"
#include "server/store/store_directory.h"

namespace rocksdb {
class FileSystem;
}  // namespace rocksdb

namespace nibble {

class StoreDb;

struct RocksStoreOptions : StoreOptions {
  // Size of each of the four tables' memory, before it becomes a file. A restart reads that much
  // from the log.
  size_t write_buffer_bytes = size_t{16} << 20;
  // Whether room on the disk is kept with which the store can be opened when the disk is full.
  bool keeps_reserve = false;
  // All files except LOCK and RESERVE are read and written through it. Null: RocksDB's default file
  // system.
  std::shared_ptr<rocksdb::FileSystem> file_system;
};

class RocksStore : public Store {
 public:
  // Creates the directory if it is missing, but not its parents.
  //
  // InvalidArgument: the cluster's name. NotFound: no store, and none is to be created.
  // FailedPrecondition: another cluster's store, or one of a newer version (naming both), or a
  // directory with other files in it. Unavailable: open in another process (named). DataLoss: a
  // file is missing or damaged, or acknowledged batches are lost; nothing is changed then.
  // ResourceExhausted: the disk is full, and the reserve, which it gives back first, does not
  // suffice; the message says how many bytes an opening needs and how many are free. Internal,
  // PermissionDenied, ...: the disk's error.
  static absl::StatusOr<std::unique_ptr<RocksStore>> Open(const std::string& path,
                                                          const RocksStoreOptions& options);
  ~RocksStore() override;

  absl::StatusOr<uint64_t> Append(StoreBatch batch, Done done) override;
  absl::Status ReadEntities(absl::string_view kind, UseEntity use) const override;
  absl::Status ReadJournal(uint64_t from, size_t limit, UseRecord use) const override;
  absl::Status TrimJournal(uint64_t through) override;
  // If `directory` is on the same file system, table files are hard links: the backup is instant,
  // but protects against a broken disk only once it is copied elsewhere.
  absl::Status Backup(const std::string& directory) const override;
  // Adds an incremental backup to a directory of them (backups.h), which is created if it is
  // missing, and removes the oldest ones beyond `keep` that are not of a later state. The backup is
  // read and its checksums verified before it counts. FailedPrecondition for backups of another
  // cluster; Unavailable while another process adds to the directory; DataLoss, naming the file, if
  // a file that it would share is damaged; otherwise the disk's error. The store does not stop.
  absl::StatusOr<StoreBackup> AddBackup(const std::string& directory, int keep) const;
  // Checks whole table files and every value. The log and RocksDB's manifest are checked when a
  // store is opened.
  absl::Status Verify() const override;
  absl::Status CheckPlace() override;
  StoreInfo Info() const override;
  absl::Status Health() const override;
  StoreMetrics Metrics() const override;
  // Bytes of the reserve that the disk had no room for when it was last looked at: once in
  // kMarksPerSync writes. 0: the reserve is there, or none is to be kept.
  uint64_t MissingReserve() const { return missing_reserve_; }

 private:
  struct Parts {
    std::optional<FileLock> lock;
    std::shared_ptr<rocksdb::FileSystem> fs;
    std::unique_ptr<AcknowledgedMark> mark;
    std::unique_ptr<StoreDb> db;
    std::unique_ptr<StorePlace> place;
    uint64_t last_sequence = 0;
    uint64_t first_sequence = 1;
    uint64_t missing_reserve = 0;
  };
  RocksStore(const std::string& path, const RocksStoreOptions& options, Parts parts);
  static absl::Status OpenParts(const std::string& path, const RocksStoreOptions& options,
                                Parts& parts);
  // The database, checked and open for writing.
  static absl::Status OpenDb(const std::string& path, const RocksStoreOptions& options,
                             uint64_t acknowledged, Parts& parts);

  absl::Status WriteGroup(absl::Span<const CommitQueue::Entry> group);
  // NotFound if files of the store are gone: the files that it writes to or, if `all`, any.
  absl::Status CheckFiles(bool all) const;
  absl::StatusOr<uint64_t> TrimSome(uint64_t first, uint64_t through);

  const std::string path_;
  const std::string cluster_;
  const size_t write_buffer_bytes_;
  const std::optional<FileLock> lock_;
  const std::shared_ptr<rocksdb::FileSystem> fs_;
  const std::unique_ptr<AcknowledgedMark> mark_;  // used by the queue's thread only
  const std::unique_ptr<StoreDb> db_;
  const std::unique_ptr<StorePlace> place_;
  std::atomic<uint64_t> missing_reserve_;
  int writes_since_all_ = 0;  // since all files were checked; used by the queue's thread only

  // Orders trims, which write to the disk.
  Mutex trim_mutex_ ABSL_ACQUIRED_BEFORE(first_mutex_);
  mutable Mutex first_mutex_;
  uint64_t first_sequence_ ABSL_GUARDED_BY(first_mutex_);

  CommitQueue queue_;  // last: its thread uses the members above
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_ROCKS_STORE_H_
