#include "server/store/rocks_store.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/files/files.h"
#include "common/status_macros.h"
#include "rocksdb/file_system.h"
#include "rocksdb/write_batch.h"
#include "server/store/backups.h"
#include "server/store/commit_queue.h"
#include "server/store/store.h"
#include "server/store/store_db.h"
#include "server/store/store_directory.h"
#include "server/store/store_format.h"

namespace nibble {
namespace {

using store_format::Table;

// The number of records that a trim drops in one write.
constexpr uint64_t kTrimStep = 1024;

absl::StatusOr<StoreInfo> InfoOf(const StoreDb::View& view) {
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t last, view.Number(kMetaApplied));
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t first, view.Number(kMetaFirst));
  return StoreInfo{"", last, first};
}

absl::StatusOr<absl::string_view> RecordOf(const StoreDb& db, uint64_t sequence,
                                           absl::string_view payload) {
  const std::optional<absl::string_view> record = store_format::ParseRecord(payload);
  if (record.has_value()) return *record;
  return absl::DataLossError(
      absl::StrCat(db.path(), ": record ", sequence, " is not in the format of records"));
}

}  // namespace

RocksStore::RocksStore(const std::string& path, const RocksStoreOptions& options, Parts parts)
    : path_(path),
      cluster_(options.cluster),
      write_buffer_bytes_(options.write_buffer_bytes),
      lock_(std::move(parts.lock)),
      fs_(std::move(parts.fs)),
      mark_(std::move(parts.mark)),
      db_(std::move(parts.db)),
      place_(std::move(parts.place)),
      missing_reserve_(parts.missing_reserve),
      first_sequence_(parts.first_sequence),
      queue_(options, parts.last_sequence,
             [this](absl::Span<const CommitQueue::Entry> group) { return WriteGroup(group); }) {}

RocksStore::~RocksStore() {
  queue_.Close();
  // Best effort: an older mark is valid, too.
  if (queue_.Health().ok()) (void)mark_->Finish(queue_.last_sequence());
}

absl::Status RocksStore::WriteGroup(absl::Span<const CommitQueue::Entry> group) {
  rocksdb::WriteBatch batch;
  for (const CommitQueue::Entry& entry : group) {
    for (const StoreChange& change : entry.batch.changes) {
      const std::string key = store_format::EntityKey(change.kind, change.key);
      if (change.value.has_value()) {
        db_->Put(batch, Table::kEntity, key, entry.sequence, *change.value);
      } else {
        db_->Delete(batch, Table::kEntity, key);
      }
    }
    db_->Put(batch, Table::kJournal, store_format::JournalKey(entry.sequence), entry.sequence,
             store_format::EncodeRecord(entry.batch.record));
  }
  const uint64_t last = group.back().sequence;
  db_->Put(batch, Table::kMeta, kMetaApplied, last, store_format::EncodeNumber(last));
  NIBBLE_RETURN_IF_ERROR(db_->Write(batch, true));
  NIBBLE_RETURN_IF_ERROR(mark_->Advance(last));
  // Acknowledge only what the next opening will find. All files are checked as often as the mark is
  // synced.
  const bool all = ++writes_since_all_ >= kMarksPerSync;
  if (all) writes_since_all_ = 0;
  if (const uint64_t missing = all ? missing_reserve_.load() : 0; missing > 0) {
    // An error of the disk is that of the next write, too.
    if (store_reserve::Keep(*fs_, path_, missing).value_or(false)) missing_reserve_ = 0;
  }
  return CheckFiles(all);
}

absl::Status RocksStore::CheckFiles(bool all) const {
  NIBBLE_RETURN_IF_ERROR(place_->Check());
  const std::string missing = db_->FindMissing(all);
  return missing.empty() ? absl::OkStatus() : StoreGone(path_, missing, "is missing");
}

absl::Status RocksStore::CheckPlace() {
  NIBBLE_RETURN_IF_ERROR(Health());
  absl::Status status = CheckFiles(false);
  if (!status.ok()) queue_.Stop(status);
  return status;
}

absl::StatusOr<uint64_t> RocksStore::Append(StoreBatch batch, Done done) {
  return queue_.Append(std::move(batch), std::move(done));
}

absl::Status RocksStore::ReadEntities(absl::string_view kind, UseEntity use) const {
  const StoreDb::View view(*db_);
  const bool all = kind.empty();
  return view.Scan(
      Table::kEntity, all ? "" : store_format::FirstOfKind(kind),
      all ? "" : store_format::AfterKind(kind),
      [&](const StoreDb::View::Item& item) -> absl::StatusOr<bool> {
        const auto names = store_format::ParseEntityKey(item.key);
        if (!names.has_value()) {
          return absl::DataLossError(
              absl::StrCat(db_->path(), ": the key of an entity has no kind"));
        }
        NIBBLE_RETURN_IF_ERROR(use({names->first, names->second, item.payload, item.sequence}));
        return true;
      });
}

absl::Status RocksStore::ReadJournal(uint64_t from, size_t limit, UseRecord use) const {
  const StoreDb::View view(*db_);
  NIBBLE_ASSIGN_OR_RETURN(const StoreInfo info, InfoOf(view));
  NIBBLE_RETURN_IF_ERROR(CheckJournalStart(from, info));
  const uint64_t end = from + std::min<uint64_t>(limit, info.last_sequence + 1 - from);
  uint64_t next = from;
  const absl::Status scanned =
      view.Scan(Table::kJournal, store_format::JournalKey(from), store_format::JournalKey(end),
                [&](const StoreDb::View::Item& item) -> absl::StatusOr<bool> {
                  if (item.key != store_format::JournalKey(next)) return false;
                  NIBBLE_ASSIGN_OR_RETURN(const auto record, RecordOf(*db_, next, item.payload));
                  NIBBLE_RETURN_IF_ERROR(use({next, record}));
                  ++next;
                  return true;
                });
  if (!scanned.ok() || next == end) return scanned;
  return absl::DataLossError(absl::StrCat(db_->path(), ": record ", next, " is missing"));
}

// Trims one step; returns the first sequence number that is kept.
absl::StatusOr<uint64_t> RocksStore::TrimSome(uint64_t first, uint64_t through) {
  const uint64_t end = std::min(first + kTrimStep, through + 1);
  rocksdb::WriteBatch batch;
  db_->DeleteRange(batch, Table::kJournal, store_format::JournalKey(first),
                   store_format::JournalKey(end));
  db_->Put(batch, Table::kMeta, kMetaFirst, queue_.last_sequence(),
           store_format::EncodeNumber(end));
  // Only the last write is synced, which makes the earlier ones durable, too.
  if (absl::Status s = db_->Write(batch, end == through + 1); !s.ok()) {
    queue_.Stop(s);
    return s;
  }
  return end;
}

absl::Status RocksStore::TrimJournal(uint64_t through) {
  MutexLock trimming(&trim_mutex_);
  NIBBLE_RETURN_IF_ERROR(Health());
  const StoreInfo info = Info();
  NIBBLE_RETURN_IF_ERROR(CheckTrim(through, info));
  for (uint64_t first = info.first_sequence; first <= through;) {
    NIBBLE_ASSIGN_OR_RETURN(const uint64_t kept, TrimSome(first, through));
    first = kept;
    MutexLock lock(&first_mutex_);
    first_sequence_ = first;
  }
  return absl::OkStatus();
}

StoreInfo RocksStore::Info() const {
  StoreInfo info;
  info.cluster = cluster_;
  // In this order: a record trimmed between the two reads was durable before.
  MutexLock lock(&first_mutex_);
  info.first_sequence = first_sequence_;
  info.last_sequence = queue_.last_sequence();
  return info;
}

absl::Status RocksStore::Health() const { return queue_.Health(); }

StoreMetrics RocksStore::Metrics() const { return queue_.Metrics(); }

namespace {

// Copies everything except STORE, without which a directory is no store, so that an unfinished copy
// is never opened.
absl::Status CopyContent(const StoreDb& db, const std::shared_ptr<rocksdb::FileSystem>& fs,
                         const std::string& directory, size_t write_buffer_bytes) {
  const std::string copy_path = absl::StrCat(directory, "/", kStoreDbName);
  NIBBLE_RETURN_IF_ERROR(db.CopyTo(copy_path));
  NIBBLE_ASSIGN_OR_RETURN(
      auto copy, StoreDb::Open(fs, copy_path, write_buffer_bytes, StoreDb::Mode::kReadOnly));
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t last, StoreDb::View(*copy).Number(kMetaApplied));
  return AcknowledgedMark::Create(*fs, directory, last);
}

}  // namespace

absl::Status RocksStore::Backup(const std::string& directory) const {
  if (fs_->FileExists(directory, rocksdb::IOOptions(), nullptr).ok()) {
    return absl::AlreadyExistsError(
        absl::StrCat("backup to ", directory, ": it exists already; name a new directory"));
  }
  absl::Status status = store_files::CreateDirectory(*fs_, directory);
  if (!status.ok()) return status;
  status = CopyContent(*db_, fs_, directory, write_buffer_bytes_);
  if (status.ok()) {
    status = store_files::Replace(*fs_, directory, kStoreMarkerName, EncodeStoreMarker(cluster_));
  }
  if (!status.ok()) (void)RemoveTree(directory);
  return status;
}

absl::StatusOr<StoreBackup> RocksStore::AddBackup(const std::string& directory, int keep) const {
  NIBBLE_RETURN_IF_ERROR(Health());
  return nibble::AddBackup(*db_, cluster_, Info().last_sequence, directory, keep);
}

absl::Status RocksStore::Verify() const {
  NIBBLE_RETURN_IF_ERROR(db_->VerifyFiles());
  NIBBLE_RETURN_IF_ERROR(ReadEntities("", [](const StoredEntity&) { return absl::OkStatus(); }));

  // The journal must have every record.
  const StoreDb::View view(*db_);
  NIBBLE_ASSIGN_OR_RETURN(uint64_t next, view.Number(kMetaFirst));
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t last, view.Number(kMetaApplied));
  const auto check_record = [&](const StoreDb::View::Item& item) -> absl::StatusOr<bool> {
    if (item.key != store_format::JournalKey(next)) return false;
    if (!store_format::ParseRecord(item.payload).has_value()) return false;
    ++next;
    return true;
  };
  NIBBLE_RETURN_IF_ERROR(view.Scan(Table::kJournal, "", "", check_record));
  if (next == last + 1) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(db_->path(), ": record ", next, " is missing or damaged"));
}

}  // namespace nibble
