#include "server/store/memory_store.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/store/commit_queue.h"
#include "server/store/store.h"
#include "server/store/store_metrics.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<MemoryStore>> MemoryStore::Open(std::shared_ptr<MemoryDisk> disk,
                                                               const StoreOptions& options) {
  if (absl::Status s = CheckClusterName(options.cluster); !s.ok()) return s;
  uint64_t last_sequence;
  {
    const std::lock_guard<std::mutex> lock(disk->mutex_);
    if (disk->open_) return absl::UnavailableError("the store in memory is open already");
    if (!disk->created_) {
      if (!options.create_if_missing) return absl::NotFoundError("no store in this memory");
      disk->created_ = true;
      disk->info_.cluster = options.cluster;
    }
    if (disk->info_.cluster != options.cluster) {
      return absl::FailedPreconditionError(absl::StrCat("the store in memory belongs to cluster \"",
                                                        disk->info_.cluster, "\", not to \"",
                                                        options.cluster, "\""));
    }
    disk->open_ = true;
    last_sequence = disk->info_.last_sequence;
  }
  return std::unique_ptr<MemoryStore>(new MemoryStore(std::move(disk), options, last_sequence));
}

MemoryStore::MemoryStore(std::shared_ptr<MemoryDisk> disk, const StoreOptions& options,
                         uint64_t last_sequence)
    : disk_(std::move(disk)),
      queue_(options, last_sequence, [this](absl::Span<const CommitQueue::Entry> group) {
        Apply(group);
        return absl::OkStatus();
      }) {}

MemoryStore::~MemoryStore() {
  queue_.Close();
  const std::lock_guard<std::mutex> lock(disk_->mutex_);
  disk_->open_ = false;
}

void MemoryStore::Apply(absl::Span<const CommitQueue::Entry> group) {
  const std::lock_guard<std::mutex> lock(disk_->mutex_);
  for (const CommitQueue::Entry& entry : group) {
    for (const StoreChange& change : entry.batch.changes) {
      const std::pair<std::string, std::string> key(change.kind, change.key);
      if (change.value.has_value()) {
        disk_->entities_[key] = {*change.value, entry.sequence};
      } else {
        disk_->entities_.erase(key);
      }
    }
    disk_->journal_[entry.sequence] = {entry.batch.record, entry.batch.topics};
    for (const std::string& topic : entry.batch.topics) {
      disk_->topics_[topic].insert(entry.sequence);
    }
    disk_->info_.last_sequence = entry.sequence;
  }
}

absl::StatusOr<uint64_t> MemoryStore::Append(StoreBatch batch, Done done) {
  return queue_.Append(std::move(batch), std::move(done));
}

// What is read is copied first, as `use` may call the store.
absl::Status MemoryStore::ReadEntities(absl::string_view kind, UseEntity use) const {
  std::vector<std::pair<std::pair<std::string, std::string>, MemoryDisk::Value>> found;
  {
    const std::lock_guard<std::mutex> lock(disk_->mutex_);
    const auto& entities = disk_->entities_;
    for (auto at = entities.lower_bound({std::string(kind), ""}); at != entities.end(); ++at) {
      if (!kind.empty() && at->first.first != kind) break;
      found.emplace_back(*at);
    }
  }
  for (const auto& [key, value] : found) {
    absl::Status s = use({key.first, key.second, value.bytes, value.sequence});
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryStore::ReadEntity(absl::string_view kind,
                                                    absl::string_view key) const {
  const std::lock_guard<std::mutex> lock(disk_->mutex_);
  const auto found = disk_->entities_.find({std::string(kind), std::string(key)});
  if (found == disk_->entities_.end()) {
    return absl::NotFoundError(absl::StrCat("no ", kind, " \"", key, "\""));
  }
  return found->second.bytes;
}

absl::Status MemoryStore::ReadJournal(uint64_t from, size_t limit, UseRecord use) const {
  std::vector<std::pair<uint64_t, MemoryDisk::Record>> found;
  {
    const std::lock_guard<std::mutex> lock(disk_->mutex_);
    if (absl::Status s = CheckJournalStart(from, disk_->info_); !s.ok()) return s;
    for (auto at = disk_->journal_.lower_bound(from);
         at != disk_->journal_.end() && found.size() < limit; ++at) {
      found.emplace_back(*at);
    }
  }
  for (const auto& [sequence, record] : found) {
    if (absl::Status s = use({sequence, record.bytes, record.topics}); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status MemoryStore::ReadTopic(absl::string_view topic, uint64_t from, size_t limit,
                                    UseRecord use) const {
  std::vector<std::pair<uint64_t, MemoryDisk::Record>> found;
  {
    const std::lock_guard<std::mutex> lock(disk_->mutex_);
    const auto sequences = disk_->topics_.find(std::string(topic));
    if (sequences == disk_->topics_.end()) return absl::OkStatus();
    for (auto at = sequences->second.lower_bound(from);
         at != sequences->second.end() && found.size() < limit; ++at) {
      found.emplace_back(*at, disk_->journal_.at(*at));
    }
  }
  for (const auto& [sequence, record] : found) {
    if (absl::Status s = use({sequence, record.bytes, record.topics}); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status MemoryStore::TrimJournal(uint64_t through) {
  if (absl::Status s = Health(); !s.ok()) return s;
  const std::lock_guard<std::mutex> lock(disk_->mutex_);
  if (absl::Status s = CheckTrim(through, disk_->info_); !s.ok()) return s;
  for (; disk_->info_.first_sequence <= through; ++disk_->info_.first_sequence) {
    const uint64_t sequence = disk_->info_.first_sequence;
    for (const std::string& topic : disk_->journal_.at(sequence).topics) {
      disk_->topics_[topic].erase(sequence);
      if (disk_->topics_[topic].empty()) disk_->topics_.erase(topic);
    }
    disk_->journal_.erase(sequence);
  }
  return absl::OkStatus();
}

absl::Status MemoryStore::Backup(const std::string& directory) const {
  return absl::UnimplementedError(
      absl::StrCat("backup to ", directory, ": a store in memory has no files"));
}

absl::Status MemoryStore::Verify() const { return absl::OkStatus(); }

StoreInfo MemoryStore::Info() const {
  const std::lock_guard<std::mutex> lock(disk_->mutex_);
  return disk_->info_;
}

absl::Status MemoryStore::Health() const { return queue_.Health(); }

StoreMetrics MemoryStore::Metrics() const { return queue_.Metrics(); }

}  // namespace nibble
