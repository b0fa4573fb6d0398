// The database of a store: its four tables, opened, read with every check, and written in batches.
//
// Ownership: owns the handle and its environment. Thread-safety: all methods but Close, from any
// number of threads; a View from one at a time.
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
#include "rocksdb/db.h"
#include "rocksdb/file_system.h"
#include "rocksdb/options.h"
#include "rocksdb/write_batch.h"
#include "server/store/store_format.h"

namespace nibble {

inline constexpr char kMetaApplied[] = "applied";  // sequence number of the last batch
inline constexpr char kMetaFirst[] = "first";      // of the oldest record kept
inline constexpr char kMetaCluster[] = "cluster";

class StoreDb {
 public:
  enum class Mode { kReadOnly, kReadWrite, kCreate };

  // kReadOnly changes nothing on the disk; kCreate also makes what is missing.
  static absl::StatusOr<std::unique_ptr<StoreDb>> Open(std::shared_ptr<rocksdb::FileSystem> fs,
                                                       const std::string& path,
                                                       size_t write_buffer_bytes, Mode mode);
  ~StoreDb();
  StoreDb(const StoreDb&) = delete;
  StoreDb& operator=(const StoreDb&) = delete;

  // All tables at one moment. Does not outlive the database.
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

    // The payload, checked. NotFound where there is no such key.
    absl::StatusOr<std::string> Get(store_format::Table table, absl::string_view key) const;
    // 0 for numbers that are missing.
    absl::StatusOr<uint64_t> Number(absl::string_view name) const;
    // Items of a table in [from, to), checked, until `use` returns false or an error; an empty `to`
    // is the table's end.
    absl::Status Scan(store_format::Table table, const std::string& from, const std::string& to,
                      absl::FunctionRef<absl::StatusOr<bool>(const Item&)> use) const;

   private:
    absl::StatusOr<store_format::Sealed> Check(store_format::Table table, absl::string_view key,
                                               absl::string_view value) const;

    const StoreDb& db_;
    const rocksdb::Snapshot* const snapshot_;  // null for a read-only database, which stands still
  };

  void Put(rocksdb::WriteBatch& batch, store_format::Table table, absl::string_view key,
           uint64_t sequence, absl::string_view payload) const;
  void Delete(rocksdb::WriteBatch& batch, store_format::Table table, absl::string_view key) const;
  void DeleteRange(rocksdb::WriteBatch& batch, store_format::Table table, absl::string_view from,
                   absl::string_view to) const;
  // Applied as a whole, in the order of the calls; durable on return where `sync`.
  absl::Status Write(rocksdb::WriteBatch& batch, bool sync);

  // A sequence number up to which the journal is in table files: what is behind it may come from
  // logs.
  uint64_t LastInTables() const;
  // The path of a file that the database needs and that is gone; empty where none is: the log that
  // is being written and CURRENT, or, with `all`, also every table and RocksDB's manifest.
  std::string FindMissing(bool all) const;
  // Every byte of every table file against the checksum taken when it was written.
  absl::Status VerifyFiles() const;
  // A copy in a new directory: files that never change are linked, where the file system can.
  absl::Status CopyTo(const std::string& path) const;

  const std::string& path() const { return path_; }
  // Nothing but destruction after it.
  absl::Status Close();

 private:
  StoreDb(std::string path, std::shared_ptr<rocksdb::FileSystem> fs);
  rocksdb::ColumnFamilyHandle* Family(store_format::Table table) const;

  const std::string path_;
  const std::unique_ptr<rocksdb::Env> env_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
  std::unique_ptr<rocksdb::DB> db_;  // goes before its environment
  bool read_only_ = false;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_STORE_DB_H_
