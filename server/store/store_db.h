// The database of a store: opens its four tables, reads them with every check, and writes batches.
//
// Ownership: owns the handle and its environment. Thread-safety: all methods except Close may be
// called from any number of threads; a View is used by one thread at a time.
#ifndef NIBBLE_SERVER_STORE_STORE_DB_H_
#define NIBBLE_SERVER_STORE_STORE_DB_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/store_format.h"

namespace rocksdb {
class BackupEngine;
class ColumnFamilyHandle;
class DB;
class Env;
class FileSystem;
class Snapshot;
class WriteBatch;
}  // namespace rocksdb

namespace nibble {

inline constexpr char kMetaApplied[] = "applied";  // sequence number of the last batch
inline constexpr char kMetaFirst[] = "first";      // of the oldest record kept
inline constexpr char kMetaCluster[] = "cluster";

class StoreDb {
 public:
  enum class Mode { kReadOnly, kReadWrite, kCreate };

  // kReadOnly changes nothing on the disk; kCreate also creates missing files and tables.
  static absl::StatusOr<std::unique_ptr<StoreDb>> Open(std::shared_ptr<rocksdb::FileSystem> fs,
                                                       const std::string& path,
                                                       size_t write_buffer_bytes, Mode mode);
  ~StoreDb();
  StoreDb(const StoreDb&) = delete;
  StoreDb& operator=(const StoreDb&) = delete;

  // A consistent snapshot of all tables. The database outlives it.
  class View {
   public:
    explicit View(const StoreDb& db);
    ~View();
    View(const View&) = delete;
    View& operator=(const View&) = delete;

    struct Item {
      absl::string_view key;
      uint64_t sequence;
      absl::string_view payload;
    };

    // The payload of a value whose seal was checked. NotFound where there is no such key.
    absl::StatusOr<std::string> Get(store_format::Table table, absl::string_view key) const;
    // 0 for numbers that are missing.
    absl::StatusOr<uint64_t> Number(absl::string_view name) const;
    // Passes the items of a table in [from, to), their seals checked, to `use` until it returns
    // false or an error; an empty `to` is the end of the table.
    absl::Status Scan(store_format::Table table, const std::string& from, const std::string& to,
                      absl::FunctionRef<absl::StatusOr<bool>(const Item&)> use) const;

   private:
    absl::StatusOr<store_format::Sealed> Check(store_format::Table table, absl::string_view key,
                                               absl::string_view value) const;

    const StoreDb& db_;
    const rocksdb::Snapshot* const
        snapshot_;  // null for a read-only database, which does not change
  };

  void Put(rocksdb::WriteBatch& batch, store_format::Table table, absl::string_view key,
           uint64_t sequence, absl::string_view payload) const;
  void Delete(rocksdb::WriteBatch& batch, store_format::Table table, absl::string_view key) const;
  void DeleteRange(rocksdb::WriteBatch& batch, store_format::Table table, absl::string_view from,
                   absl::string_view to) const;
  // Atomic; batches are applied in the order of the calls. Durable on return if `sync`.
  absl::Status Write(rocksdb::WriteBatch& batch, bool sync);

  // A sequence number up to which the journal is in table files; later records may be in logs only.
  uint64_t LastInTables() const;
  // The path of a missing file, or empty. Looks for CURRENT and the log being written and, if
  // `all`, also for every table and RocksDB's manifest.
  std::string FindMissing(bool all) const;
  // Removes what failed openings have left, and each would add to until one succeeds: tables, empty
  // logs and manifests with higher numbers than CURRENT's manifest and the tables in it, which it
  // therefore has never named, and unfinished replacements of CURRENT. For a read-only database,
  // while no other process has it open.
  absl::Status RemoveOrphans() const;
  // Checks every table file against the checksum computed when it was written.
  absl::Status VerifyFiles() const;
  // Makes a copy in a new directory; immutable files are hard links where the file system allows
  // it.
  absl::Status CopyTo(const std::string& path) const;

  // Adds a backup with everything that is durable now; `id` is its number. Flushes memory first, so
  // that the backup has table files, which later backups share.
  absl::Status BackUp(rocksdb::BackupEngine& engine, const std::string& description,
                      uint32_t& id) const;

  const std::string& path() const { return path_; }
  rocksdb::Env* env() const { return env_.get(); }
  // Afterwards only the destructor may be called.
  absl::Status Close();

 private:
  StoreDb(std::string path, std::shared_ptr<rocksdb::FileSystem> fs);
  rocksdb::ColumnFamilyHandle* Family(store_format::Table table) const;

  const std::string path_;
  const std::unique_ptr<rocksdb::Env> env_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
  std::unique_ptr<rocksdb::DB> db_;  // destroyed before env_, which it uses
  bool read_only_ = false;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_STORE_DB_H_
