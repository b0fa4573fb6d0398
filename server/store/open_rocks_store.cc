// Opening a store: what is in the directory, whether it is ours, and whether all of it is there.
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
#include "rocksdb/file_system.h"
#include "rocksdb/write_batch.h"
#include "server/store/acknowledged_mark.h"
#include "server/store/rocks_store.h"
#include "server/store/store.h"
#include "server/store/store_db.h"
#include "server/store/store_files.h"
#include "server/store/store_format.h"
#include "server/store/store_layout.h"
#include "server/store/store_lock.h"
#include "server/store/store_marker.h"
#include "server/store/store_place.h"

namespace nibble {
namespace {

using store_format::Table;
using Names = std::vector<std::string>;

// A directory without a marker: may a store be made in it?
absl::Status CheckUnused(const std::string& path, const Names& names, bool create) {
  for (const std::string& name : names) {
    if (name == kStoreDbName || name == kMarkName) {
      return absl::DataLossError(absl::StrCat(path, "/", kStoreMarkerName,
                                              " is missing, though there is ", path, "/", name));
    }
    if (name != kStoreLockName && name != "lost+found" &&
        name != absl::StrCat(kStoreMarkerName, ".tmp")) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is no store and is not empty: it has \"", name, "\""));
    }
  }
  if (create) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("no store in ", path));
}

absl::Status CheckMarker(rocksdb::FileSystem& fs, const std::string& path,
                         const StoreOptions& options) {
  const std::string marker = absl::StrCat(path, "/", kStoreMarkerName);
  const absl::StatusOr<std::string> content = store_files::Read(fs, marker);
  if (absl::IsNotFound(content.status())) {
    const absl::StatusOr<Names> names = store_files::List(fs, path);
    if (!names.ok()) return names.status();
    absl::Status unused = CheckUnused(path, *names, options.create_if_missing);
    if (!unused.ok()) return unused;
    // Also where it is there already: its own name may not be durable yet.
    if (absl::Status s = store_files::CreateDirectory(fs, path); !s.ok()) return s;
    return store_files::Replace(fs, path, kStoreMarkerName, EncodeStoreMarker(options.cluster));
  }
  if (!content.ok()) return content.status();
  const absl::StatusOr<std::string> cluster = ParseStoreMarker(*content, marker);
  if (!cluster.ok()) return cluster.status();
  return CheckSameCluster(path, *cluster, options.cluster);
}

// Before RocksDB would make a new database over what is left of one.
absl::Status CheckNoRemains(rocksdb::FileSystem& fs, const std::string& path) {
  const absl::StatusOr<Names> names = store_files::List(fs, path);
  if (!names.ok()) return names.status();
  if (absl::c_linear_search(*names, "CURRENT")) return absl::OkStatus();
  for (const std::string& name : *names) {
    if (absl::EndsWith(name, ".sst") || absl::EndsWith(name, ".log")) {
      return absl::DataLossError(
          absl::StrCat(path, "/CURRENT is missing, though there is ", path, "/", name));
    }
  }
  return absl::OkStatus();
}

// RocksDB would name the manifest that is not there, not the file that says so.
absl::Status CheckCurrent(rocksdb::FileSystem& fs, const std::string& path) {
  const std::string current = absl::StrCat(path, "/CURRENT");
  const absl::StatusOr<std::string> content = store_files::Read(fs, current);
  if (absl::IsNotFound(content.status())) {
    return absl::DataLossError(absl::StrCat(current, " is missing"));
  }
  if (!content.ok()) return content.status();
  const absl::StatusOr<Names> names = store_files::List(fs, path);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (absl::StartsWith(name, "MANIFEST-") && *content == name + "\n") return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(current, " is damaged, or the manifest that it names is missing: \"",
                   absl::CHexEscape(content->substr(0, 32)), "\""));
}

// The files from which batches can have gone.
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

// RocksDB reads a log after a missing or shortened one as if nothing had been between them.
absl::Status CheckNoGap(rocksdb::FileSystem& fs, const StoreDb& db, const StoreDb::View& view,
                        uint64_t last) {
  const absl::StatusOr<uint64_t> first = view.Number(kMetaFirst);
  if (!first.ok()) return first.status();
  uint64_t next = std::max(*first, db.LastInTables());
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

// The last sequence number of the database, having been checked to be that of this cluster, at
// least what was acknowledged, and all there.
absl::StatusOr<uint64_t> CheckContent(rocksdb::FileSystem& fs, const StoreDb& db,
                                      const std::string& path, const std::string& cluster,
                                      uint64_t acknowledged) {
  const StoreDb::View view(db);
  const absl::StatusOr<uint64_t> last = view.Number(kMetaApplied);
  if (!last.ok()) return last.status();
  if (*last < acknowledged) {
    return absl::DataLossError(absl::StrCat("the store ", path, " ends with batch ", *last,
                                            ", but batch ", acknowledged,
                                            " was acknowledged: ", LogsOf(fs, db)));
  }
  if (absl::Status s = CheckNoGap(fs, db, view, *last); !s.ok()) return s;
  const absl::StatusOr<std::string> stored = view.Get(Table::kMeta, kMetaCluster);
  if (!stored.ok()) {
    return absl::DataLossError(
        absl::StrCat(db.path(), " does not name its cluster: ", stored.status().message()));
  }
  if (absl::Status s = CheckSameCluster(db.path(), *stored, cluster); !s.ok()) return s;
  return *last;
}

// What every database has from its beginning. Made again where a crash came before the end of it.
absl::Status WriteFirst(StoreDb& db, const std::string& cluster) {
  rocksdb::WriteBatch batch;
  db.Put(batch, Table::kMeta, kMetaCluster, 0, cluster);
  db.Put(batch, Table::kMeta, kMetaApplied, 0, store_format::EncodeNumber(0));
  db.Put(batch, Table::kMeta, kMetaFirst, 0, store_format::EncodeNumber(1));
  return db.Write(batch, true);
}

// A store whose mark is not there has never been open: the mark is the last that creating makes.
absl::Status Create(const std::shared_ptr<rocksdb::FileSystem>& fs, const std::string& path,
                    const RocksStoreOptions& options) {
  const std::string db_path = absl::StrCat(path, "/", kStoreDbName);
  if (absl::Status s = store_files::CreateDirectory(*fs, db_path); !s.ok()) return s;
  if (absl::Status s = CheckNoRemains(*fs, db_path); !s.ok()) return s;
  const auto db = StoreDb::Open(fs, db_path, options.write_buffer_bytes, StoreDb::Mode::kCreate);
  if (!db.ok()) return db.status();
  const absl::StatusOr<uint64_t> last = StoreDb::View(**db).Number(kMetaApplied);
  if (!last.ok()) return last.status();
  if (*last != 0) {
    return absl::DataLossError(absl::StrCat(path, "/", kMarkName, " is missing, though ", db_path,
                                            " has ", *last, " batches"));
  }
  if (absl::Status s = WriteFirst(**db, options.cluster); !s.ok()) return s;
  if (absl::Status s = (*db)->Close(); !s.ok()) return s;
  return AcknowledgedMark::Create(*fs, path, 0);
}

}  // namespace

absl::Status RocksStore::OpenParts(const std::string& path, const RocksStoreOptions& options,
                                   Parts& parts) {
  if (absl::Status s = CheckClusterName(options.cluster); !s.ok()) return s;
  parts.fs = options.file_system;
  if (parts.fs == nullptr) parts.fs = rocksdb::FileSystem::Default();
  rocksdb::FileSystem& fs = *parts.fs;
  if (!fs.FileExists(path, rocksdb::IOOptions(), nullptr).ok()) {
    if (!options.create_if_missing) return absl::NotFoundError(absl::StrCat("no store ", path));
    if (absl::Status s = store_files::CreateDirectory(fs, path); !s.ok()) return s;
  }
  auto lock = StoreLock::Take(path);
  if (!lock.ok()) return lock.status();
  parts.lock = *std::move(lock);
  if (absl::Status s = CheckMarker(fs, path, options); !s.ok()) return s;

  absl::StatusOr<uint64_t> acknowledged = AcknowledgedMark::Read(fs, path);
  if (absl::IsNotFound(acknowledged.status())) {
    if (absl::Status s = Create(parts.fs, path, options); !s.ok()) return s;
    acknowledged = 0;
  }
  if (!acknowledged.ok()) return acknowledged.status();

  // First without changing anything: opening to write removes the logs that it has read, and a
  // damaged one must stay for whoever repairs it.
  const std::string db_path = absl::StrCat(path, "/", kStoreDbName);
  if (absl::Status s = CheckCurrent(fs, db_path); !s.ok()) return s;
  for (const StoreDb::Mode mode : {StoreDb::Mode::kReadOnly, StoreDb::Mode::kReadWrite}) {
    parts.db.reset();
    auto db = StoreDb::Open(parts.fs, db_path, options.write_buffer_bytes, mode);
    if (!db.ok()) return db.status();
    const auto last = CheckContent(fs, **db, path, options.cluster, *acknowledged);
    if (!last.ok()) return last.status();
    parts.db = *std::move(db);
    parts.last_sequence = *last;
  }
  const auto first = StoreDb::View(*parts.db).Number(kMetaFirst);
  if (!first.ok()) return first.status();
  if (*first < 1 || *first > parts.last_sequence + 1) {
    return absl::DataLossError(absl::StrCat(db_path, ": the oldest record is ", *first,
                                            ", the last ", parts.last_sequence));
  }
  parts.first_sequence = *first;
  auto mark = AcknowledgedMark::Open(fs, path, parts.last_sequence);
  if (!mark.ok()) return mark.status();
  parts.mark = *std::move(mark);
  auto place = StorePlace::Watch(path, {kStoreLockName, kStoreMarkerName, kMarkName, kStoreDbName});
  if (!place.ok()) return place.status();
  parts.place = *std::move(place);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RocksStore>> RocksStore::Open(const std::string& path,
                                                             const RocksStoreOptions& options) {
  Parts parts;
  if (absl::Status s = OpenParts(path, options, parts); !s.ok()) return s;
  return std::unique_ptr<RocksStore>(new RocksStore(path, options, std::move(parts)));
}

}  // namespace nibble
