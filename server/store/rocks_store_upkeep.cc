// Verifying a store and copying it.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "rocksdb/file_system.h"
#include "server/store/acknowledged_mark.h"
#include "server/store/rocks_store.h"
#include "server/store/store.h"
#include "server/store/store_db.h"
#include "server/store/store_files.h"
#include "server/store/store_format.h"
#include "server/store/store_layout.h"
#include "server/store/store_marker.h"

namespace nibble {
namespace {

using store_format::Table;

// Everything but STORE, without which a directory is no store: an unfinished copy is never opened.
absl::Status CopyContent(const StoreDb& db, const std::shared_ptr<rocksdb::FileSystem>& fs,
                         const std::string& directory, size_t write_buffer_bytes) {
  const std::string copy_path = absl::StrCat(directory, "/", kStoreDbName);
  if (absl::Status s = db.CopyTo(copy_path); !s.ok()) return s;
  auto copy = StoreDb::Open(fs, copy_path, write_buffer_bytes, StoreDb::Mode::kReadOnly);
  if (!copy.ok()) return copy.status();
  const absl::StatusOr<uint64_t> last = StoreDb::View(**copy).Number(kMetaApplied);
  if (!last.ok()) return last.status();
  return AcknowledgedMark::Create(*fs, directory, *last);
}

}  // namespace

absl::Status RocksStore::Backup(const std::string& directory) const {
  if (fs_->FileExists(directory, rocksdb::IOOptions(), nullptr).ok()) {
    return absl::AlreadyExistsError(absl::StrCat("backup to ", directory, ": it is there"));
  }
  absl::Status status = store_files::CreateDirectory(*fs_, directory);
  if (!status.ok()) return status;
  status = CopyContent(*db_, fs_, directory, write_buffer_bytes_);
  if (status.ok()) {
    status = store_files::Replace(*fs_, directory, kStoreMarkerName, EncodeStoreMarker(cluster_));
  }
  if (!status.ok()) {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  }
  return status;
}

absl::Status RocksStore::Verify() const {
  if (absl::Status s = db_->VerifyFiles(); !s.ok()) return s;
  absl::Status s = ReadEntities("", [](const StoredEntity&) { return absl::OkStatus(); });
  if (!s.ok()) return s;

  // The journal has every record, and the topics have exactly the records that name them.
  const StoreDb::View view(*db_);
  const absl::StatusOr<uint64_t> first = view.Number(kMetaFirst);
  const absl::StatusOr<uint64_t> last = view.Number(kMetaApplied);
  if (!first.ok()) return first.status();
  if (!last.ok()) return last.status();
  uint64_t next = *first;
  uint64_t named = 0;
  const auto check_record = [&](const StoreDb::View::Item& item) -> absl::StatusOr<bool> {
    if (item.key != store_format::JournalKey(next)) return false;
    const auto record = store_format::ParseRecord(item.payload);
    if (!record.has_value()) return false;
    for (const std::string& topic :
         std::set<std::string>(record->topics.begin(), record->topics.end())) {
      const auto entry = view.Get(Table::kTopic, store_format::TopicKey(topic, next));
      if (absl::IsNotFound(entry.status())) {
        return absl::DataLossError(
            absl::StrCat(db_->path(), ": topic \"", topic, "\" has lost its record ", next));
      }
      if (!entry.ok()) return entry.status();
      ++named;
    }
    ++next;
    return true;
  };
  s = view.Scan(Table::kJournal, "", "", check_record);
  if (!s.ok()) return s;
  if (next != *last + 1) {
    return absl::DataLossError(
        absl::StrCat(db_->path(), ": record ", next, " is missing or damaged"));
  }
  uint64_t entries = 0;
  s = view.Scan(Table::kTopic, "", "", [&](const StoreDb::View::Item&) -> absl::StatusOr<bool> {
    ++entries;
    return true;
  });
  if (!s.ok()) return s;
  if (entries != named) {
    return absl::DataLossError(absl::StrCat(db_->path(), ": topics have ", entries,
                                            " entries, the journal's records name ", named));
  }
  return absl::OkStatus();
}

}  // namespace nibble
