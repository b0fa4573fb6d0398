// Opening a store: checks that the directory has a store, that it belongs to the cluster, and that
// nothing acknowledged is missing.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files/file_lock.h"
#include "common/status_macros.h"
#include "rocksdb/file_system.h"
#include "rocksdb/write_batch.h"
#include "server/store/rocks_store.h"
#include "server/store/store.h"
#include "server/store/store_db.h"
#include "server/store/store_directory.h"
#include "server/store/store_format.h"

namespace nibble {
namespace {

using store_format::Table;
using Names = std::vector<std::string>;

// Whether a store may be created in a directory that has no marker.
absl::Status CheckUnused(const std::string& path, const Names& names, bool create) {
  for (const std::string& name : names) {
    if (name == kStoreDbName || name == kMarkName) {
      return absl::DataLossError(absl::StrCat(path, "/", kStoreMarkerName,
                                              " is missing, though there is ", path, "/", name));
    }
    if (name != kStoreLockName && name != "lost+found" &&
        name != absl::StrCat(kStoreMarkerName, ".tmp")) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is not a store and is not empty: it has \"", name, "\""));
    }
  }
  if (create) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("there is no store in ", path));
}

absl::Status CheckMarker(rocksdb::FileSystem& fs, const std::string& path,
                         const StoreOptions& options) {
  const std::string marker = absl::StrCat(path, "/", kStoreMarkerName);
  const absl::StatusOr<std::string> content = store_files::Read(fs, marker);
  if (absl::IsNotFound(content.status())) {
    NIBBLE_ASSIGN_OR_RETURN(const Names names, store_files::List(fs, path));
    NIBBLE_RETURN_IF_ERROR(CheckUnused(path, names, options.create_if_missing));
    // Even if the directory exists: its own name may not be durable yet.
    NIBBLE_RETURN_IF_ERROR(store_files::CreateDirectory(fs, path));
    return store_files::Replace(fs, path, kStoreMarkerName, EncodeStoreMarker(options.cluster));
  }
  if (!content.ok()) return content.status();
  NIBBLE_ASSIGN_OR_RETURN(const std::string cluster, ParseStoreMarker(*content, marker));
  return CheckSameCluster(path, cluster, options.cluster);
}

// DataLoss for the remains of a database, over which RocksDB would create a new one.
absl::Status CheckNoRemains(rocksdb::FileSystem& fs, const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const Names names, store_files::List(fs, path));
  if (absl::c_linear_search(names, "CURRENT")) return absl::OkStatus();
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".sst") || absl::EndsWith(name, ".log")) {
      return absl::DataLossError(
          absl::StrCat(path, "/CURRENT is missing, though there is ", path, "/", name));
    }
  }
  return absl::OkStatus();
}

// Checks CURRENT, because RocksDB's error would name the missing manifest instead.
absl::Status CheckCurrent(rocksdb::FileSystem& fs, const std::string& path) {
  const std::string current = absl::StrCat(path, "/CURRENT");
  const absl::StatusOr<std::string> content = store_files::Read(fs, current);
  if (absl::IsNotFound(content.status())) {
    return absl::DataLossError(absl::StrCat(current, " is missing"));
  }
  if (!content.ok()) return content.status();
  NIBBLE_ASSIGN_OR_RETURN(const Names names, store_files::List(fs, path));
  for (const std::string& name : names) {
    if (absl::StartsWith(name, "MANIFEST-") && *content == name + "\n") return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(current, " is damaged, or the manifest that it names is missing: \"",
                   absl::CHexEscape(content->substr(0, 32)), "\""));
}

// The files that can have lost batches, for a message.
std::string LogsOf(rocksdb::FileSystem& fs, const StoreDb& db) {
  Names logs;
  if (absl::StatusOr<Names> names = store_files::List(fs, db.path()); names.ok()) {
    for (const std::string& name : *names) {
      if (absl::EndsWith(name, ".log") || absl::StartsWith(name, "MANIFEST-")) {
        logs.push_back(absl::StrCat(db.path(), "/", name));
      }
    }
  }
  return absl::StrCat("one of these is damaged, or another .log file is missing: ",
                      absl::StrJoin(logs, ", "));
}

// RocksDB does not notice that a log before the last one is missing or shortened.
absl::Status CheckNoGap(rocksdb::FileSystem& fs, const StoreDb& db, const StoreDb::View& view,
                        uint64_t last) {
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t first, view.Number(kMetaFirst));
  uint64_t next = std::max(first, db.LastInTables());
  const absl::Status scanned =
      view.Scan(Table::kJournal, store_format::JournalKey(next), "",
                [&](const StoreDb::View::Item& item) -> absl::StatusOr<bool> {
                  if (item.key != store_format::JournalKey(next)) return false;
                  ++next;
                  return true;
                });
  if (!scanned.ok() || next == last + 1) return scanned;
  return absl::DataLossError(absl::StrCat(db.path(), " lacks batch ", next,
                                          ", though it has batch ", last, ": ", LogsOf(fs, db)));
}

// Returns the last sequence number of the database, after checking that the database belongs to the
// cluster, has every acknowledged batch, and has no gap.
absl::StatusOr<uint64_t> CheckContent(rocksdb::FileSystem& fs, const StoreDb& db,
                                      const std::string& path, const std::string& cluster,
                                      uint64_t acknowledged) {
  const StoreDb::View view(db);
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t last, view.Number(kMetaApplied));
  if (last < acknowledged) {
    return absl::DataLossError(absl::StrCat("the store ", path, " ends with batch ", last,
                                            ", but batch ", acknowledged,
                                            " was acknowledged: ", LogsOf(fs, db)));
  }
  NIBBLE_RETURN_IF_ERROR(CheckNoGap(fs, db, view, last));
  const absl::StatusOr<std::string> stored = view.Get(Table::kMeta, kMetaCluster);
  if (!stored.ok()) {
    return absl::DataLossError(absl::StrCat(db.path(), " does not name its cluster: ",
                                            stored.status().message(), "; ", LogsOf(fs, db)));
  }
  NIBBLE_RETURN_IF_ERROR(CheckSameCluster(db.path(), *stored, cluster));
  return last;
}

// Writes what every database has from its beginning. Repeated if a crash interrupted Create.
absl::Status WriteFirst(StoreDb& db, const std::string& cluster) {
  rocksdb::WriteBatch batch;
  db.Put(batch, Table::kMeta, kMetaCluster, 0, cluster);
  db.Put(batch, Table::kMeta, kMetaApplied, 0, store_format::EncodeNumber(0));
  db.Put(batch, Table::kMeta, kMetaFirst, 0, store_format::EncodeNumber(1));
  return db.Write(batch, true);
}

// Creates the database and, last, the mark: a store without a mark has never been open.
absl::Status Create(const std::shared_ptr<rocksdb::FileSystem>& fs, const std::string& path,
                    const RocksStoreOptions& options) {
  const std::string db_path = absl::StrCat(path, "/", kStoreDbName);
  NIBBLE_RETURN_IF_ERROR(store_files::CreateDirectory(*fs, db_path));
  NIBBLE_RETURN_IF_ERROR(CheckNoRemains(*fs, db_path));
  NIBBLE_ASSIGN_OR_RETURN(const auto db, StoreDb::Open(fs, db_path, options.write_buffer_bytes,
                                                       StoreDb::Mode::kCreate));
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t last, StoreDb::View(*db).Number(kMetaApplied));
  if (last != 0) {
    return absl::DataLossError(absl::StrCat(path, "/", kMarkName, " is missing, though ", db_path,
                                            " has ", last, " batches"));
  }
  NIBBLE_RETURN_IF_ERROR(WriteFirst(*db, options.cluster));
  NIBBLE_RETURN_IF_ERROR(db->Close());
  return AcknowledgedMark::Create(*fs, path, 0);
}

}  // namespace

absl::Status RocksStore::OpenParts(const std::string& path, const RocksStoreOptions& options,
                                   Parts& parts) {
  NIBBLE_RETURN_IF_ERROR(CheckClusterName(options.cluster));
  parts.fs = options.file_system;
  if (parts.fs == nullptr) parts.fs = rocksdb::FileSystem::Default();
  rocksdb::FileSystem& fs = *parts.fs;
  if (!fs.FileExists(path, rocksdb::IOOptions(), nullptr).ok()) {
    if (!options.create_if_missing)
      return absl::NotFoundError(absl::StrCat("there is no store ", path));
    NIBBLE_RETURN_IF_ERROR(store_files::CreateDirectory(fs, path));
  }
  absl::StatusOr<FileLock> lock = FileLock::TryAcquire(absl::StrCat(path, "/", kStoreLockName));
  if (!lock.ok()) {
    return absl::Status(lock.status().code(),
                        absl::StrCat("the store ", path, ": ", lock.status().message()));
  }
  parts.lock = *std::move(lock);
  NIBBLE_RETURN_IF_ERROR(CheckMarker(fs, path, options));

  absl::StatusOr<uint64_t> acknowledged = AcknowledgedMark::Read(fs, path);
  if (absl::IsNotFound(acknowledged.status())) {
    NIBBLE_RETURN_IF_ERROR(Create(parts.fs, path, options));
    acknowledged = 0;
  }
  if (!acknowledged.ok()) return acknowledged.status();

  // First opens it read-only: opening for writing removes the logs that it has read, and damaged
  // logs must remain for repair.
  const std::string db_path = absl::StrCat(path, "/", kStoreDbName);
  NIBBLE_RETURN_IF_ERROR(CheckCurrent(fs, db_path));
  for (const StoreDb::Mode mode : {StoreDb::Mode::kReadOnly, StoreDb::Mode::kReadWrite}) {
    parts.db.reset();
    NIBBLE_ASSIGN_OR_RETURN(auto db,
                            StoreDb::Open(parts.fs, db_path, options.write_buffer_bytes, mode));
    NIBBLE_ASSIGN_OR_RETURN(const auto last,
                            CheckContent(fs, *db, path, options.cluster, *acknowledged));
    parts.db = std::move(db);
    parts.last_sequence = last;
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto first, StoreDb::View(*parts.db).Number(kMetaFirst));
  if (first < 1 || first > parts.last_sequence + 1) {
    return absl::DataLossError(absl::StrCat(db_path, ": the oldest record is ", first,
                                            ", the last ", parts.last_sequence));
  }
  parts.first_sequence = first;
  NIBBLE_ASSIGN_OR_RETURN(parts.mark, AcknowledgedMark::Open(fs, path, parts.last_sequence));
  NIBBLE_ASSIGN_OR_RETURN(parts.place, StorePlace::Watch(path, {kStoreLockName, kStoreMarkerName,
                                                                kMarkName, kStoreDbName}));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RocksStore>> RocksStore::Open(const std::string& path,
                                                             const RocksStoreOptions& options) {
  Parts parts;
  NIBBLE_RETURN_IF_ERROR(OpenParts(path, options, parts));
  return std::unique_ptr<RocksStore>(new RocksStore(path, options, std::move(parts)));
}

}  // namespace nibble
