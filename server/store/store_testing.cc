#include "server/store/store_testing.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "server/store/commit_queue.h"
#include "server/store/store.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<MemoryStore>> MemoryStore::Open(std::shared_ptr<MemoryDisk> disk,
                                                               const StoreOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckClusterName(options.cluster));
  uint64_t last_sequence;
  {
    MutexLock lock(&disk->mutex_);
    if (disk->open_) return absl::UnavailableError("the store in memory is open already");
    if (!disk->created_) {
      if (!options.create_if_missing)
        return absl::NotFoundError("there is no store in this memory");
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
  MutexLock lock(&disk_->mutex_);
  disk_->open_ = false;
}

void MemoryStore::Apply(absl::Span<const CommitQueue::Entry> group) {
  MutexLock lock(&disk_->mutex_);
  for (const CommitQueue::Entry& entry : group) {
    for (const StoreChange& change : entry.batch.changes) {
      const std::pair<std::string, std::string> key(change.kind, change.key);
      if (change.value.has_value()) {
        disk_->entities_[key] = {*change.value, entry.sequence};
      } else {
        disk_->entities_.erase(key);
      }
    }
    disk_->journal_[entry.sequence] = entry.batch.record;
    disk_->info_.last_sequence = entry.sequence;
  }
}

absl::StatusOr<uint64_t> MemoryStore::Append(StoreBatch batch, Done done) {
  return queue_.Append(std::move(batch), std::move(done));
}

// Copies the result before it calls `use`, which may call the store.
absl::Status MemoryStore::ReadEntities(absl::string_view kind, UseEntity use) const {
  std::vector<std::pair<std::pair<std::string, std::string>, MemoryDisk::Value>> found;
  {
    MutexLock lock(&disk_->mutex_);
    for (auto at = disk_->entities_.lower_bound({std::string(kind), ""});
         at != disk_->entities_.end(); ++at) {
      if (!kind.empty() && at->first.first != kind) break;
      found.emplace_back(*at);
    }
  }
  for (const auto& [key, value] : found) {
    NIBBLE_RETURN_IF_ERROR(use({key.first, key.second, value.bytes, value.sequence}));
  }
  return absl::OkStatus();
}

absl::Status MemoryStore::ReadJournal(uint64_t from, size_t limit, UseRecord use) const {
  std::vector<std::pair<uint64_t, std::string>> found;
  {
    MutexLock lock(&disk_->mutex_);
    NIBBLE_RETURN_IF_ERROR(CheckJournalStart(from, disk_->info_));
    for (auto at = disk_->journal_.lower_bound(from);
         at != disk_->journal_.end() && found.size() < limit; ++at) {
      found.emplace_back(*at);
    }
  }
  for (const auto& [sequence, record] : found) {
    NIBBLE_RETURN_IF_ERROR(use({sequence, record}));
  }
  return absl::OkStatus();
}

absl::Status MemoryStore::TrimJournal(uint64_t through) {
  NIBBLE_RETURN_IF_ERROR(Health());
  MutexLock lock(&disk_->mutex_);
  NIBBLE_RETURN_IF_ERROR(CheckTrim(through, disk_->info_));
  if (through < disk_->info_.first_sequence) return absl::OkStatus();
  disk_->journal_.erase(disk_->journal_.begin(), disk_->journal_.upper_bound(through));
  disk_->info_.first_sequence = through + 1;
  return absl::OkStatus();
}

absl::Status MemoryStore::Backup(const std::string& directory) const {
  return absl::UnimplementedError(
      absl::StrCat("backup to ", directory, ": a store in memory has no files"));
}

absl::Status MemoryStore::Verify() const { return absl::OkStatus(); }

StoreInfo MemoryStore::Info() const {
  MutexLock lock(&disk_->mutex_);
  return disk_->info_;
}

absl::Status MemoryStore::Health() const { return queue_.Health(); }

StoreMetrics MemoryStore::Metrics() const { return queue_.Metrics(); }

namespace {

// One batch per write, so that a fault fails one batch and the batches before it succeed.
StoreOptions QueueOptions() {
  StoreOptions options;
  options.max_batches_per_write = 1;
  return options;
}

}  // namespace

FaultyStore::FaultyStore(std::unique_ptr<Store> behind)
    : behind_(std::move(behind)),
      queue_(QueueOptions(), behind_->Info().last_sequence,
             [this](absl::Span<const CommitQueue::Entry> group) { return PassOn(group.front()); }) {
}

FaultyStore::~FaultyStore() {
  Release();
  queue_.Close();
}

void FaultyStore::FailAppend(int64_t count, Fault fault) {
  MutexLock lock(&mutex_);
  faults_[count] = fault;
}

void FaultyStore::Hold() {
  MutexLock lock(&mutex_);
  allowed_ = 0;
}

void FaultyStore::Release(int64_t count) {
  {
    MutexLock lock(&mutex_);
    if (count < 0) {
      allowed_ = -1;
    } else if (allowed_ >= 0) {
      allowed_ += count;
    }
  }
  released_.SignalAll();
}

absl::Status FaultyStore::PassOn(const CommitQueue::Entry& entry) {
  std::optional<Fault> fault;
  {
    MutexLock lock(&mutex_);
    while (allowed_ == 0) released_.Wait(&mutex_);
    if (allowed_ > 0) --allowed_;
    const auto found = faults_.find(++passed_);
    if (found != faults_.end()) fault = found->second;
  }
  if (fault == Fault::kLost || fault == Fault::kDiskFull) {
    const std::string message = absl::StrCat("writing batch ", entry.sequence, ": ");
    return fault == Fault::kLost
               ? absl::InternalError(absl::StrCat(message, "Input/output error"))
               : absl::ResourceExhaustedError(absl::StrCat(message, "No space left on device"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t sequence, behind_->Commit(entry.batch));
  if (sequence != entry.sequence) {
    return absl::InternalError(absl::StrCat("batch ", entry.sequence, " got the number ", sequence,
                                            " behind: something else writes there"));
  }
  if (fault == Fault::kWritten) {
    return absl::InternalError(
        absl::StrCat("syncing batch ", entry.sequence, ": Input/output error"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> FaultyStore::Append(StoreBatch batch, Done done) {
  return queue_.Append(std::move(batch), std::move(done));
}

absl::Status FaultyStore::ReadEntities(absl::string_view kind, UseEntity use) const {
  return behind_->ReadEntities(kind, use);
}

absl::Status FaultyStore::ReadJournal(uint64_t from, size_t limit, UseRecord use) const {
  return behind_->ReadJournal(from, limit, use);
}

absl::Status FaultyStore::TrimJournal(uint64_t through) {
  NIBBLE_RETURN_IF_ERROR(Health());
  return behind_->TrimJournal(through);
}

absl::Status FaultyStore::Backup(const std::string& directory) const {
  return behind_->Backup(directory);
}

absl::Status FaultyStore::Verify() const { return behind_->Verify(); }

StoreInfo FaultyStore::Info() const { return behind_->Info(); }

absl::Status FaultyStore::Health() const {
  absl::Status status = queue_.Health();
  return status.ok() ? behind_->Health() : status;
}

StoreMetrics FaultyStore::Metrics() const { return queue_.Metrics(); }

}  // namespace nibble

namespace nibble::store_testing {
namespace {

constexpr size_t kAll = std::numeric_limits<size_t>::max();

std::string RandomBytes(std::mt19937_64& random, size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

}  // namespace

StoreBatch RandomBatch(uint64_t seed, size_t value_bytes) {
  std::mt19937_64 random(seed);
  StoreBatch batch;
  batch.record = RandomBytes(random, random() % (value_bytes + 1));
  for (uint64_t i = random() % 4; i > 0; --i) {
    const char* const kinds[] = {"job", "job-queue", "worker"};
    StoreChange change{kinds[random() % 3], absl::StrCat("name-", random() % 12), std::nullopt};
    if (random() % 4 != 0) change.value = RandomBytes(random, random() % (value_bytes + 1));
    batch.changes.push_back(std::move(change));
  }
  return batch;
}

void Content::Apply(uint64_t sequence, const StoreBatch& batch) {
  for (const StoreChange& change : batch.changes) {
    if (change.value.has_value()) {
      entities[{change.kind, change.key}] = *change.value;
    } else {
      entities.erase({change.kind, change.key});
    }
  }
  journal[sequence] = batch.record;
}

absl::StatusOr<Content> ReadAll(const Store& store) {
  Content content;
  NIBBLE_RETURN_IF_ERROR(store.ReadEntities("", [&](const StoredEntity& entity) {
    content.entities[{std::string(entity.kind), std::string(entity.key)}] =
        std::string(entity.value);
    return absl::OkStatus();
  }));
  NIBBLE_RETURN_IF_ERROR(
      store.ReadJournal(store.Info().first_sequence, kAll, [&](const StoredRecord& record) {
        content.journal[record.sequence] = std::string(record.record);
        return absl::OkStatus();
      }));
  return content;
}

Content From(Content content, uint64_t first) {
  content.journal.erase(content.journal.begin(), content.journal.lower_bound(first));
  return content;
}

}  // namespace nibble::store_testing
