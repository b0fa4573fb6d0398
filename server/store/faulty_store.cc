#include "server/store/faulty_store.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/store/commit_queue.h"
#include "server/store/store.h"
#include "server/store/store_metrics.h"

namespace nibble {
namespace {

// One batch a write: a fault is of one batch, and those before it have succeeded.
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
  const std::lock_guard<std::mutex> lock(mutex_);
  faults_[count] = fault;
}

void FaultyStore::Hold() {
  const std::lock_guard<std::mutex> lock(mutex_);
  allowed_ = 0;
}

void FaultyStore::Release(int64_t count) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (count < 0) {
      allowed_ = -1;
    } else if (allowed_ >= 0) {
      allowed_ += count;
    }
  }
  released_.notify_all();
}

absl::Status FaultyStore::PassOn(const CommitQueue::Entry& entry) {
  std::optional<Fault> fault;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    released_.wait(lock, [this] { return allowed_ != 0; });
    if (allowed_ > 0) --allowed_;
    const auto found = faults_.find(++passed_);
    if (found != faults_.end()) fault = found->second;
  }
  if (fault == Fault::kLost || fault == Fault::kDiskFull) {
    const std::string message = absl::StrCat("writing batch ", entry.sequence, ": ");
    return fault == Fault::kLost
               ? absl::UnavailableError(absl::StrCat(message, "Input/output error"))
               : absl::ResourceExhaustedError(absl::StrCat(message, "No space left on device"));
  }
  const absl::StatusOr<uint64_t> sequence = behind_->Commit(entry.batch);
  if (!sequence.ok()) return sequence.status();
  if (*sequence != entry.sequence) {
    return absl::InternalError(absl::StrCat("batch ", entry.sequence, " got the number ", *sequence,
                                            " behind: something else writes there"));
  }
  if (fault == Fault::kWritten) {
    return absl::UnavailableError(
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

absl::StatusOr<std::string> FaultyStore::ReadEntity(absl::string_view kind,
                                                    absl::string_view key) const {
  return behind_->ReadEntity(kind, key);
}

absl::Status FaultyStore::ReadJournal(uint64_t from, size_t limit, UseRecord use) const {
  return behind_->ReadJournal(from, limit, use);
}

absl::Status FaultyStore::ReadTopic(absl::string_view topic, uint64_t from, size_t limit,
                                    UseRecord use) const {
  return behind_->ReadTopic(topic, from, limit, use);
}

absl::Status FaultyStore::TrimJournal(uint64_t through) {
  if (absl::Status s = Health(); !s.ok()) return s;
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
