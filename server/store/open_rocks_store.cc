// Opening a store: checks that the directory has a store, that it belongs to the cluster, that
// nothing acknowledged is missing, and that the disk has room for it.
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
#include "common/rocks/rocks.h"
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

// The reserve, in write buffers: the logs have as much as the buffers of the four tables when the
// disk is full, and an opened store is to go on for a while.
constexpr uint64_t kReserveBuffers = 6;

// Bytes that an opening writes at most: the content of the logs into tables, which have an index,
// too, and small files.
absl::StatusOr<uint64_t> OpeningBytes(rocksdb::FileSystem& fs, const std::string& db_path) {
  constexpr uint64_t kSmallFiles = uint64_t{256} << 10;
  NIBBLE_ASSIGN_OR_RETURN(const Names names, store_files::List(fs, db_path));
  uint64_t logs = 0;
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, ".log")) continue;
    const std::string path = absl::StrCat(db_path, "/", name);
    uint64_t bytes = 0;
    const auto status = fs.GetFileSize(path, rocksdb::IOOptions(), &bytes, nullptr);
    if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("size of ", path));
    logs += bytes;
  }
  return logs + logs / 8 + kSmallFiles;
}

absl::Status NoRoom(const std::string& path, uint64_t needed, uint64_t free,
                    absl::string_view more) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the store ", path, " needs ", needed, " bytes of its disk, and ", free,
                   " are free: free as many as are missing, and start again", more));
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

absl::Status RocksStore::OpenDb(const std::string& path, const RocksStoreOptions& options,
                                uint64_t acknowledged, Parts& parts) {
  rocksdb::FileSystem& fs = *parts.fs;
  const std::string db_path = absl::StrCat(path, "/", kStoreDbName);
  const auto open = [&](StoreDb::Mode mode) -> absl::Status {
    parts.db.reset();
    NIBBLE_ASSIGN_OR_RETURN(auto db,
                            StoreDb::Open(parts.fs, db_path, options.write_buffer_bytes, mode));
    NIBBLE_ASSIGN_OR_RETURN(parts.last_sequence,
                            CheckContent(fs, *db, path, options.cluster, acknowledged));
    parts.db = std::move(db);
    return absl::OkStatus();
  };
  // First opens it read-only: opening for writing removes the logs that it has read, and damaged
  // logs must remain for repair.
  NIBBLE_RETURN_IF_ERROR(CheckCurrent(fs, db_path));
  NIBBLE_RETURN_IF_ERROR(open(StoreDb::Mode::kReadOnly));
  NIBBLE_RETURN_IF_ERROR(parts.db->RemoveOrphans());
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t needed, OpeningBytes(fs, db_path));
  NIBBLE_ASSIGN_OR_RETURN(uint64_t free, store_files::FreeBytes(fs, path));
  if (free < needed) return NoRoom(path, needed, free, "");
  const absl::Status opened = open(StoreDb::Mode::kReadWrite);
  if (!absl::IsResourceExhausted(opened)) return opened;
  // Such as by a quota.
  NIBBLE_ASSIGN_OR_RETURN(free, store_files::FreeBytes(fs, path));
  return NoRoom(path, needed, free, absl::StrCat(": ", opened.message()));
}

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

  const std::string db_path = absl::StrCat(path, "/", kStoreDbName);
  absl::Status opened = OpenDb(path, options, *acknowledged, parts);
  if (absl::IsResourceExhausted(opened)) {
    NIBBLE_ASSIGN_OR_RETURN(const bool released, store_reserve::Release(path));
    if (released) opened = OpenDb(path, options, *acknowledged, parts);
  }
  if (!opened.ok()) return opened;
  NIBBLE_ASSIGN_OR_RETURN(const auto first, StoreDb::View(*parts.db).Number(kMetaFirst));
  if (first < 1 || first > parts.last_sequence + 1) {
    return absl::DataLossError(absl::StrCat(db_path, ": the oldest record is ", first,
                                            ", the last ", parts.last_sequence));
  }
  parts.first_sequence = first;
  NIBBLE_ASSIGN_OR_RETURN(parts.mark, AcknowledgedMark::Open(fs, path, parts.last_sequence));
  NIBBLE_ASSIGN_OR_RETURN(parts.place, StorePlace::Watch(path, {kStoreLockName, kStoreMarkerName,
                                                                kMarkName, kStoreDbName}));
  if (!options.keeps_reserve) return absl::OkStatus();
  const uint64_t reserve = kReserveBuffers * options.write_buffer_bytes;
  NIBBLE_ASSIGN_OR_RETURN(const bool kept, store_reserve::Keep(fs, path, reserve));
  if (!kept) parts.missing_reserve = reserve;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RocksStore>> RocksStore::Open(const std::string& path,
                                                             const RocksStoreOptions& options) {
  Parts parts;
  NIBBLE_RETURN_IF_ERROR(OpenParts(path, options, parts));
  return std::unique_ptr<RocksStore>(new RocksStore(path, options, std::move(parts)));
}

}  // namespace nibble
