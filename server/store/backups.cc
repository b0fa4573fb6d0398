#include "server/store/backups.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/crc32c.h"
#include "common/files/file_lock.h"
#include "common/files/files.h"
#include "common/rocks/rocks.h"
#include "common/status_macros.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "rocksdb/utilities/backup_engine.h"
#include "server/store/rocks_store.h"
#include "server/store/store_db.h"
#include "server/store/store_directory.h"
#include "server/store/store_format.h"

namespace nibble {
namespace {

using rocksdb::BackupEngine;
using rocksdb::BackupEngineReadOnly;

constexpr char kRestoredName[] = "RESTORED";
constexpr char kBackupLockName[] = "LOCK";
constexpr absl::string_view kBackupHead = "nibble backup\nversion ";
constexpr size_t kWriteBufferBytes = size_t{1} << 20;  // of a store that is only read

rocksdb::BackupEngineOptions EngineOptions(const std::string& directory) {
  rocksdb::BackupEngineOptions options(directory);
  options.share_table_files = true;
  options.share_files_with_checksum = true;
  options.sync = true;
  return options;
}

// What a backup records about itself: text with a checksum.
std::string DescribeBackup(const std::string& cluster, uint64_t last_sequence) {
  const std::string text = absl::StrCat(kBackupHead, store_format::kVersion, "\nsequence ",
                                        last_sequence, "\ncluster ", cluster, "\n");
  return absl::StrFormat("%scrc32c %08x\n", text, Crc32c(text));
}

absl::StatusOr<StoreBackup> ReadBackup(const rocksdb::BackupInfo& info,
                                       const std::string& directory) {
  const std::string name = absl::StrCat("backup ", info.backup_id, " in ", directory);
  StoreBackup backup = {
      .id = info.backup_id, .made = absl::FromUnixSeconds(info.timestamp), .bytes = info.size};
  absl::string_view rest = info.app_metadata;
  int version = 0;
  if (!absl::ConsumePrefix(&rest, kBackupHead) ||
      !absl::SimpleAtoi(rest.substr(0, rest.find('\n')), &version)) {
    return absl::DataLossError(absl::StrCat(name, ": its description is damaged"));
  }
  // Checked before the rest, which a newer version may write differently.
  if (version > store_format::kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(name, " has format version ", version,
                                                      ", this program knows up to ",
                                                      store_format::kVersion));
  }
  const std::vector<std::string> lines = absl::StrSplit(rest, '\n');
  if (lines.size() >= 3 &&
      absl::SimpleAtoi(absl::StripPrefix(lines[1], "sequence "), &backup.last_sequence)) {
    backup.cluster = std::string(absl::StripPrefix(lines[2], "cluster "));
    if (info.app_metadata == DescribeBackup(backup.cluster, backup.last_sequence)) return backup;
  }
  return absl::DataLossError(absl::StrCat(name, ": its description is damaged"));
}

absl::StatusOr<StoreBackups> ListOf(const rocksdb::BackupEngineReadOnlyBase& engine,
                                    const std::string& directory) {
  StoreBackups backups;
  std::vector<rocksdb::BackupInfo> infos;
  engine.GetBackupInfo(&infos);
  for (const rocksdb::BackupInfo& info : infos) {
    absl::StatusOr<StoreBackup> backup = ReadBackup(info, directory);
    if (backup.ok()) {
      backups.intact.push_back(*std::move(backup));
    } else {
      backups.damaged.push_back({info.backup_id, backup.status()});
    }
  }
  std::vector<rocksdb::BackupID> damaged;
  engine.GetCorruptedBackups(&damaged);
  for (const rocksdb::BackupID id : damaged) {
    absl::Status why =
        rocks::ToStatus(engine.VerifyBackup(id), absl::StrCat("backup ", id, " in ", directory));
    if (why.ok()) {
      why = absl::DataLossError(absl::StrCat("backup ", id, " in ", directory, " is damaged"));
    }
    backups.damaged.push_back({id, std::move(why)});
  }
  absl::c_sort(backups.intact, [](const auto& a, const auto& b) { return a.id < b.id; });
  absl::c_sort(backups.damaged, [](const auto& a, const auto& b) { return a.id < b.id; });
  return backups;
}

// The parts that reading a directory of backups needs.
struct BackupReader {
  std::unique_ptr<rocksdb::Env> env;
  std::unique_ptr<BackupEngineReadOnly> engine;  // destroyed first: uses env
  StoreBackups backups;
};

absl::StatusOr<BackupReader> OpenReader(
    const std::string& directory,
    std::shared_ptr<rocksdb::FileSystem> fs = rocksdb::FileSystem::Default()) {
  // RocksDB would create the directory.
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return absl::NotFoundError(absl::StrCat("there is no directory of backups ", directory));
  }
  BackupReader reader;
  reader.env = rocksdb::NewCompositeEnv(rocks::FooterCheckedFileSystem(std::move(fs)));
  BackupEngineReadOnly* engine = nullptr;
  const rocksdb::IOStatus opened =
      BackupEngineReadOnly::Open(EngineOptions(directory), reader.env.get(), &engine);
  reader.engine.reset(engine);
  NIBBLE_RETURN_IF_ERROR(rocks::ToStatus(opened, absl::StrCat("reading backups in ", directory)));
  NIBBLE_ASSIGN_OR_RETURN(reader.backups, ListOf(*reader.engine, directory));
  return reader;
}

std::string IdsOf(const StoreBackups& backups) {
  std::vector<uint32_t> ids;
  for (const StoreBackup& backup : backups.intact) ids.push_back(backup.id);
  return ids.empty() ? "none" : absl::StrJoin(ids, ", ");
}

// The backup with this number; 0: the newest one, whether it is intact or not.
absl::StatusOr<StoreBackup> FindBackup(const StoreBackups& backups, const std::string& directory,
                                       uint32_t id) {
  if (id == 0) {
    if (!backups.intact.empty()) id = backups.intact.back().id;
    if (!backups.damaged.empty()) id = std::max(id, backups.damaged.back().id);
  }
  for (const StoreBackup& backup : backups.intact) {
    if (backup.id == id) return backup;
  }
  for (const StoreBackups::Damaged& damaged : backups.damaged) {
    if (damaged.id != id) continue;
    return absl::Status(damaged.why.code(),
                        absl::StrCat(damaged.why.message(), "; intact backups: ", IdsOf(backups)));
  }
  const std::string which = id == 0 ? "no backup" : absl::StrCat("no backup ", id);
  return absl::NotFoundError(
      absl::StrCat("there is ", which, " in ", directory, "; intact backups: ", IdsOf(backups)));
}

// Removes the oldest backups beyond `keep`. Those of a later state than `newest` stay: they are
// what an emptied store would be restored from.
absl::Status RemoveOld(BackupEngine& engine, const StoreBackups& backups, const StoreBackup& newest,
                       int keep, const std::string& directory) {
  std::vector<uint32_t> old;
  for (const StoreBackup& backup : backups.intact) {
    if (backup.last_sequence <= newest.last_sequence) old.push_back(backup.id);
  }
  for (size_t i = 0; i + static_cast<size_t>(keep) < old.size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(rocks::ToStatus(
        engine.DeleteBackup(old[i]), absl::StrCat("removing backup ", old[i], " in ", directory)));
  }
  // What interrupted backups left.
  return rocks::ToStatus(engine.GarbageCollect(), absl::StrCat("cleaning ", directory));
}

// Restores everything except STORE, which makes the directory a store.
absl::Status RestoreContent(const BackupReader& reader, const StoreBackup& backup,
                            const std::string& directory, const std::string& path,
                            const std::shared_ptr<rocksdb::FileSystem>& fs) {
  const std::string db_path = absl::StrCat(path, "/", kStoreDbName);
  NIBBLE_RETURN_IF_ERROR(
      rocks::ToStatus(reader.engine->RestoreDBFromBackup(backup.id, db_path, db_path),
                      absl::StrCat("restoring backup ", backup.id, " in ", directory)));
  // RocksDB syncs backups but not what it restores.
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(db_path));
  for (const std::string& name : names) {
    NIBBLE_RETURN_IF_ERROR(store_files::SyncFile(*fs, absl::StrCat(db_path, "/", name)));
  }
  NIBBLE_RETURN_IF_ERROR(store_files::SyncDirectory(*fs, db_path));
  uint64_t last = 0;
  {
    NIBBLE_ASSIGN_OR_RETURN(
        const auto db, StoreDb::Open(fs, db_path, kWriteBufferBytes, StoreDb::Mode::kReadOnly));
    NIBBLE_ASSIGN_OR_RETURN(last, StoreDb::View(*db).Number(kMetaApplied));
  }
  if (last < backup.last_sequence) {
    return absl::DataLossError(absl::StrCat("backup ", backup.id, " in ", directory,
                                            " ends with batch ", last, ", but it had batch ",
                                            backup.last_sequence));
  }
  NIBBLE_RETURN_IF_ERROR(AcknowledgedMark::Create(*fs, path, last));
  return store_files::Replace(*fs, path, kRestoredName,
                              absl::StrCat("backup ", backup.id, " of ", directory, "\n"));
}

// Opens the restored store and reads all of it.
absl::Status VerifyRestored(const StoreBackup& backup, const std::string& path,
                            std::shared_ptr<rocksdb::FileSystem> fs) {
  RocksStoreOptions options;
  options.file_system = std::move(fs);
  options.cluster = backup.cluster;
  options.create_if_missing = false;
  NIBBLE_ASSIGN_OR_RETURN(const auto store, RocksStore::Open(path, options));
  return store->Verify();
}

}  // namespace

absl::StatusOr<StoreBackups> ListBackups(const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(BackupReader reader, OpenReader(directory));
  return std::move(reader.backups);
}

absl::Status CheckBackup(const std::string& directory, uint32_t id) {
  NIBBLE_ASSIGN_OR_RETURN(const BackupReader reader, OpenReader(directory));
  NIBBLE_ASSIGN_OR_RETURN(const StoreBackup backup, FindBackup(reader.backups, directory, id));
  return rocks::ToStatus(reader.engine->VerifyBackup(backup.id, /*verify_with_checksum=*/true),
                         absl::StrCat("backup ", backup.id, " in ", directory));
}

absl::StatusOr<StoreBackup> RestoreBackup(const std::string& directory, uint32_t id,
                                          const std::string& path,
                                          std::shared_ptr<rocksdb::FileSystem> fs) {
  if (fs == nullptr) fs = rocksdb::FileSystem::Default();
  NIBBLE_ASSIGN_OR_RETURN(const BackupReader reader, OpenReader(directory, fs));
  NIBBLE_ASSIGN_OR_RETURN(StoreBackup backup, FindBackup(reader.backups, directory, id));
  const bool existed = std::filesystem::exists(path);
  NIBBLE_RETURN_IF_ERROR(store_files::CreateDirectory(*fs, path));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(path));
  for (const std::string& name : names) {
    if (name == "lost+found") continue;
    return absl::AlreadyExistsError(absl::StrCat(path, " is not empty: it has \"", name,
                                                 "\"; restore to a new or an empty directory"));
  }
  absl::Status status = RestoreContent(reader, backup, directory, path, fs);
  if (status.ok()) {
    status = store_files::Replace(*fs, path, kStoreMarkerName, EncodeStoreMarker(backup.cluster));
  }
  if (status.ok()) status = VerifyRestored(backup, path, fs);
  if (status.ok()) return backup;
  // STORE first: without it the rest is not opened.
  for (const char* const name :
       {kStoreMarkerName, kRestoredName, kMarkName, kStoreLockName, kStoreDbName}) {
    (void)RemoveTree(absl::StrCat(path, "/", name));
  }
  if (!existed) (void)RemoveTree(path);
  return status;
}

bool IsRestored(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(absl::StrCat(path, "/", kRestoredName), error);
}

absl::Status ClearRestored(const std::string& path) {
  NIBBLE_RETURN_IF_ERROR(RemoveTree(absl::StrCat(path, "/", kRestoredName)));
  return SyncDirectory(path);
}

absl::StatusOr<StoreBackup> AddBackup(const StoreDb& db, const std::string& cluster,
                                      uint64_t last_sequence, const std::string& directory,
                                      int keep) {
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(directory));
  absl::StatusOr<FileLock> lock =
      FileLock::TryAcquire(absl::StrCat(directory, "/", kBackupLockName));
  if (!lock.ok()) {
    return absl::Status(lock.status().code(),
                        absl::StrCat("backups in ", directory, ": ", lock.status().message()));
  }
  BackupEngine* opened = nullptr;
  const rocksdb::IOStatus status = BackupEngine::Open(EngineOptions(directory), db.env(), &opened);
  const std::unique_ptr<BackupEngine> engine(opened);
  NIBBLE_RETURN_IF_ERROR(rocks::ToStatus(status, absl::StrCat("opening backups in ", directory)));
  NIBBLE_ASSIGN_OR_RETURN(StoreBackups backups, ListOf(*engine, directory));
  for (const StoreBackup& other : backups.intact) {
    if (other.cluster == cluster) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("backup ", other.id, " in ", directory, " belongs to cluster \"",
                     other.cluster, "\", not to \"", cluster, "\"; use a directory per cluster"));
  }
  uint32_t id = 0;
  NIBBLE_RETURN_IF_ERROR(db.BackUp(*engine, DescribeBackup(cluster, last_sequence), id));
  // A shared file may have been damaged since an earlier backup wrote it.
  if (const rocksdb::IOStatus verified = engine->VerifyBackup(id, true); !verified.ok()) {
    (void)engine->DeleteBackup(id).ok();
    const absl::Status why = rocks::ToStatus(verified, absl::StrCat("backup to ", directory));
    return absl::Status(why.code(),
                        absl::StrCat(why.message(),
                                     "; earlier backups share that file: run 'nibble-coordinator "
                                     "backup check', and back up to another directory"));
  }
  rocksdb::BackupInfo info;
  NIBBLE_RETURN_IF_ERROR(
      rocks::ToStatus(engine->GetBackupInfo(id, &info), absl::StrCat("reading backup ", id)));
  NIBBLE_ASSIGN_OR_RETURN(StoreBackup made, ReadBackup(info, directory));
  backups.intact.push_back(made);
  NIBBLE_RETURN_IF_ERROR(RemoveOld(*engine, backups, made, keep, directory));
  return made;
}

}  // namespace nibble
