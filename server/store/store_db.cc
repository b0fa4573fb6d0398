#include "server/store/store_db.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/rocks/rocks.h"
#include "common/status_macros.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/file_checksum.h"
#include "rocksdb/file_system.h"
#include "rocksdb/iterator.h"
#include "rocksdb/metadata.h"
#include "rocksdb/options.h"
#include "rocksdb/slice.h"
#include "rocksdb/sst_file_reader.h"
#include "rocksdb/status.h"
#include "rocksdb/table.h"
#include "rocksdb/transaction_log.h"
#include "rocksdb/utilities/backup_engine.h"
#include "rocksdb/utilities/checkpoint.h"
#include "rocksdb/write_batch.h"
#include "server/store/store_format.h"

namespace nibble {

using store_format::Sealed;
using store_format::Table;

namespace {

using rocks::ToSlice;

std::vector<rocksdb::ColumnFamilyDescriptor> Families(const rocksdb::Options& options) {
  return {{rocksdb::kDefaultColumnFamilyName, options},
          {"entities", options},
          {"journal", options},
          {"topics", options}};  // always empty; part of the format
}

rocksdb::Options StoreDbOptions(rocksdb::Env* env, size_t write_buffer_bytes) {
  rocksdb::Options options = rocks::BaseOptions();
  options.env = env;
  options.max_background_jobs = 2;
  // Not 4 MiB, which an opening on a nearly full disk would lack.
  options.manifest_preallocation_size = size_t{64} << 10;
  options.write_buffer_size = write_buffer_bytes;
  options.max_total_wal_size = 4 * uint64_t{write_buffer_bytes};
  // Otherwise a column family that is rarely flushed would keep the logs of the others.
  options.atomic_flush = true;
  // A log that a power failure cut is read up to the cut. RocksDB cannot know whether acknowledged
  // batches followed it; AcknowledgedMark does.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  // Whatever is recovered from a log is written to new, synced files at once: the log's own pages
  // may never have reached the disk if its last sync failed.
  options.avoid_flush_during_recovery = false;
  // After a failed write the store is reopened; RocksDB must not retry by itself.
  options.max_bgerror_resume_count = 0;
  options.paranoid_checks = true;
  options.file_checksum_gen_factory = rocksdb::GetFileChecksumGenCrc32cFactory();
  rocksdb::BlockBasedTableOptions table;
  table.block_size = size_t{16} << 10;
  rocks::SetTableFormat(options, table);
  return options;
}

// The number in the name of a table, a log or a manifest; 0: none.
uint64_t NumberIn(absl::string_view name) {
  absl::ConsumePrefix(&name, "MANIFEST-");
  absl::ConsumeSuffix(&name, ".sst");
  absl::ConsumeSuffix(&name, ".log");
  uint64_t number = 0;
  return absl::SimpleAtoi(name, &number) ? number : 0;
}

// The damaged tables, for the message: RocksDB's error for a table that it cannot open names the
// manifest, not the table.
std::string DamagedTables(const rocksdb::Options& options, const std::string& path) {
  std::vector<std::string> names;
  (void)options.env->GetChildren(path, &names).ok();
  std::sort(names.begin(), names.end());
  std::string damaged;
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, ".sst")) continue;
    rocksdb::SstFileReader reader(options);
    rocksdb::Status status = reader.Open(absl::StrCat(path, "/", name));
    if (status.ok()) status = reader.VerifyChecksum();
    if (!status.ok()) absl::StrAppend(&damaged, "; damaged: ", path, "/", name);
  }
  return damaged;
}

}  // namespace

StoreDb::StoreDb(std::string path, std::shared_ptr<rocksdb::FileSystem> fs)
    : path_(std::move(path)),
      env_(rocksdb::NewCompositeEnv(rocks::FooterCheckedFileSystem(std::move(fs)))) {}

StoreDb::~StoreDb() { (void)Close(); }

absl::StatusOr<std::unique_ptr<StoreDb>> StoreDb::Open(std::shared_ptr<rocksdb::FileSystem> fs,
                                                       const std::string& path,
                                                       size_t write_buffer_bytes, Mode mode) {
  std::unique_ptr<StoreDb> store(new StoreDb(path, std::move(fs)));
  rocksdb::Options options = StoreDbOptions(store->env_.get(), write_buffer_bytes);
  options.create_if_missing = mode == Mode::kCreate;
  options.create_missing_column_families = mode == Mode::kCreate;
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = Families(options);
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status =
      mode == Mode::kReadOnly
          ? rocksdb::DB::OpenForReadOnly(options, path, families, &store->families_, &db)
          : rocksdb::DB::Open(options, path, families, &store->families_, &db);
  if (!status.ok()) {
    const absl::Status error = rocks::ToStatus(status, absl::StrCat("opening ", path));
    if (!status.IsCorruption()) return error;
    return absl::DataLossError(absl::StrCat(error.message(), DamagedTables(options, path)));
  }
  store->db_.reset(db);
  store->read_only_ = mode == Mode::kReadOnly;
  return store;
}

absl::Status StoreDb::Close() {
  if (db_ == nullptr) return absl::OkStatus();
  for (rocksdb::ColumnFamilyHandle* family : families_) {
    (void)db_->DestroyColumnFamilyHandle(family).ok();
  }
  families_.clear();
  const rocksdb::Status status = db_->Close();
  db_.reset();
  return rocks::ToStatus(status, absl::StrCat("closing ", path_));
}

rocksdb::ColumnFamilyHandle* StoreDb::Family(Table table) const {
  // In the order of Families().
  switch (table) {
    case Table::kMeta:
      return families_[0];
    case Table::kEntity:
      return families_[1];
    case Table::kJournal:
      return families_[2];
  }
  return nullptr;
}

StoreDb::View::View(const StoreDb& db)
    : db_(db), snapshot_(db.read_only_ ? nullptr : db.db_->GetSnapshot()) {}

StoreDb::View::~View() {
  if (snapshot_ != nullptr) db_.db_->ReleaseSnapshot(snapshot_);
}

absl::StatusOr<Sealed> StoreDb::View::Check(Table table, absl::string_view key,
                                            absl::string_view value) const {
  absl::StatusOr<Sealed> sealed = store_format::Unseal(table, key, value);
  if (sealed.ok()) return sealed;
  return absl::DataLossError(absl::StrCat(db_.path_, ": ", sealed.status().message()));
}

absl::StatusOr<std::string> StoreDb::View::Get(Table table, absl::string_view key) const {
  rocksdb::ReadOptions options;
  options.snapshot = snapshot_;
  rocksdb::PinnableSlice value;
  const rocksdb::Status status = db_.db_->Get(options, db_.Family(table), ToSlice(key), &value);
  if (status.IsNotFound()) {
    return absl::NotFoundError(absl::StrCat("no such key in ", store_format::TableName(table)));
  }
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("reading ", db_.path_));
  NIBBLE_ASSIGN_OR_RETURN(const Sealed sealed, Check(table, key, {value.data(), value.size()}));
  return std::string(sealed.payload);
}

absl::StatusOr<uint64_t> StoreDb::View::Number(absl::string_view name) const {
  const absl::StatusOr<std::string> payload = Get(Table::kMeta, name);
  if (absl::IsNotFound(payload.status())) return 0;
  if (!payload.ok()) return payload.status();
  const auto number = store_format::ParseNumber(*payload);
  if (number.has_value()) return *number;
  return absl::DataLossError(absl::StrCat(db_.path_, ": meta key \"", name, "\" has ",
                                          payload->size(), " bytes, a number has 8"));
}

absl::Status StoreDb::View::Scan(Table table, const std::string& from, const std::string& to,
                                 absl::FunctionRef<absl::StatusOr<bool>(const Item&)> use) const {
  rocksdb::ReadOptions options;
  options.snapshot = snapshot_;
  // Scanned blocks are read once and would evict those that are read repeatedly.
  options.fill_cache = false;
  const rocksdb::Slice end(to);
  if (!to.empty()) options.iterate_upper_bound = &end;
  const std::unique_ptr<rocksdb::Iterator> at(db_.db_->NewIterator(options, db_.Family(table)));
  for (at->Seek(ToSlice(from)); at->Valid(); at->Next()) {
    const absl::string_view key(at->key().data(), at->key().size());
    NIBBLE_ASSIGN_OR_RETURN(const Sealed sealed,
                            Check(table, key, {at->value().data(), at->value().size()}));
    NIBBLE_ASSIGN_OR_RETURN(const bool more, use({key, sealed.sequence, sealed.payload}));
    if (!more) return absl::OkStatus();
  }
  return rocks::ToStatus(
      at->status(), absl::StrCat("reading ", store_format::TableName(table), " of ", db_.path_));
}

void StoreDb::Put(rocksdb::WriteBatch& batch, Table table, absl::string_view key, uint64_t sequence,
                  absl::string_view payload) const {
  // Fails only beyond RocksDB's size limits, which are above those of CheckBatch.
  (void)batch
      .Put(Family(table), ToSlice(key), ToSlice(store_format::Seal(table, key, sequence, payload)))
      .ok();
}

void StoreDb::Delete(rocksdb::WriteBatch& batch, Table table, absl::string_view key) const {
  (void)batch.Delete(Family(table), ToSlice(key)).ok();
}

void StoreDb::DeleteRange(rocksdb::WriteBatch& batch, Table table, absl::string_view from,
                          absl::string_view to) const {
  (void)batch.DeleteRange(Family(table), ToSlice(from), ToSlice(to)).ok();
}

absl::Status StoreDb::Write(rocksdb::WriteBatch& batch, bool sync) {
  rocksdb::WriteOptions options;
  options.sync = sync;
  return rocks::ToStatus(db_->Write(options, &batch), absl::StrCat("writing ", path_));
}

uint64_t StoreDb::LastInTables() const {
  std::vector<rocksdb::LiveFileMetaData> files;
  db_->GetLiveFilesMetaData(&files);
  uint64_t last = 0;
  for (const rocksdb::LiveFileMetaData& file : files) {
    if (file.column_family_name != Family(Table::kJournal)->GetName()) continue;
    // The key may be the end of a trimmed range, which is at most one more than the last record.
    last = std::max(last, store_format::ParseJournalKey(file.largestkey).value_or(0));
  }
  return last == 0 ? 0 : last - 1;
}

std::string StoreDb::FindMissing(bool all) const {
  rocksdb::Env& env = *env_;
  const auto is_missing = [&](const std::string& path) {
    const rocksdb::Status status = env.FileExists(path);
    return status.IsNotFound() || status.IsPathNotFound();
  };
  if (const std::string current = absl::StrCat(path_, "/CURRENT"); is_missing(current)) {
    return current;
  }
  // RocksDB may switch logs between GetCurrentWalFile and the check; not three times in a row.
  std::string log;
  for (int tries = 0; tries < 3; ++tries) {
    std::unique_ptr<rocksdb::LogFile> file;
    const rocksdb::Status status = db_->GetCurrentWalFile(&file);
    log = status.ok() && file != nullptr ? absl::StrCat(path_, file->PathName()) : "";
    if (log.empty() ? !status.IsPathNotFound() && !status.IsNotFound() : !is_missing(log)) break;
    if (tries == 2) return log.empty() ? absl::StrCat(path_, "/*.log") : log;
  }
  if (!all) return "";
  // Compaction removes tables: a file is missing only if it is live before and after the check.
  const auto live = [this] {
    std::vector<std::string> files;
    uint64_t manifest_bytes = 0;
    if (!db_->GetLiveFiles(files, &manifest_bytes, false).ok()) files.clear();
    return files;
  };
  for (const std::string& name : live()) {
    if (absl::StrContains(name, "OPTIONS-")) continue;  // only people read it
    const std::string path = absl::StrCat(path_, name);
    if (is_missing(path) && absl::c_linear_search(live(), name)) return path;
  }
  return "";
}

absl::Status StoreDb::RemoveOrphans() const {
  const std::string current = absl::StrCat(path_, "/CURRENT");
  std::string manifest;
  rocksdb::Status status = rocksdb::ReadFileToString(env_.get(), current, &manifest);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("reading ", current));
  absl::StripTrailingAsciiWhitespace(&manifest);
  std::vector<std::string> names;
  status = env_->GetChildren(path_, &names);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("reading directory ", path_));
  uint64_t newest = NumberIn(manifest);
  std::vector<rocksdb::LiveFileMetaData> live;
  db_->GetLiveFilesMetaData(&live);
  for (const rocksdb::LiveFileMetaData& file : live) newest = std::max(newest, file.file_number);
  std::erase_if(names, [&](const std::string& name) {
    if (absl::EndsWith(name, ".dbtmp")) return false;
    uint64_t bytes = 1;
    const bool empty_log = absl::EndsWith(name, ".log") &&
                           env_->GetFileSize(absl::StrCat(path_, "/", name), &bytes).ok() &&
                           bytes == 0;
    const bool unnamed =
        empty_log || absl::EndsWith(name, ".sst") || absl::StartsWith(name, "MANIFEST-");
    return !unnamed || NumberIn(name) <= newest;
  });
  if (names.empty()) return absl::OkStatus();
  // What was read may be in the page cache alone: it must not be lost when they are.
  std::unique_ptr<rocksdb::RandomRWFile> file;
  status = env_->NewRandomRWFile(absl::StrCat(path_, "/", manifest), &file, rocksdb::EnvOptions());
  if (status.ok()) status = file->Fsync();
  std::unique_ptr<rocksdb::Directory> directory;
  if (status.ok()) status = env_->NewDirectory(path_, &directory);
  if (status.ok()) status = directory->Fsync();
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("syncing ", path_, "/", manifest));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(path_, "/", name);
    status = env_->DeleteFile(path);
    if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("removing ", path));
  }
  return absl::OkStatus();
}

absl::Status StoreDb::VerifyFiles() const {
  return rocks::ToStatus(db_->VerifyFileChecksums(rocksdb::ReadOptions()),
                         absl::StrCat("verifying ", path_));
}

absl::Status StoreDb::CopyTo(const std::string& path) const {
  rocksdb::Checkpoint* checkpoint = nullptr;
  rocksdb::Status status = rocksdb::Checkpoint::Create(db_.get(), &checkpoint);
  const std::unique_ptr<rocksdb::Checkpoint> owned(checkpoint);
  // 0: flush the memory tables first, so that the copy needs no log.
  if (status.ok()) status = checkpoint->CreateCheckpoint(path, 0);
  return rocks::ToStatus(status, absl::StrCat("copying ", path_, " to ", path));
}

absl::Status StoreDb::BackUp(rocksdb::BackupEngine& engine, const std::string& description,
                             uint32_t& id) const {
  rocksdb::CreateBackupOptions options;
  options.flush_before_backup = true;
  return rocks::ToStatus(engine.CreateNewBackupWithMetadata(options, db_.get(), description, &id),
                         absl::StrCat("backing up ", path_));
}

}  // namespace nibble
