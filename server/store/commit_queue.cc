#include "server/store/commit_queue.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/store/store.h"

namespace nibble {

CommitQueue::CommitQueue(const StoreOptions& options, uint64_t last_sequence, Write write)
    : max_batches_(std::max<size_t>(options.max_batches_per_write, 1)),
      max_waiting_bytes_(options.max_waiting_bytes),
      clock_(ClockOf(options)),
      write_(std::move(write)),
      next_(last_sequence + 1),
      durable_(last_sequence),
      thread_([this] { Run(); }) {}

CommitQueue::~CommitQueue() { Close(); }

void CommitQueue::Close() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
  }
  changed_.SignalAll();
  MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<uint64_t> CommitQueue::Append(StoreBatch batch, Store::Done done) {
  const absl::Status checked = CheckBatch(batch);
  const size_t bytes = BatchBytes(batch);
  uint64_t sequence;
  {
    MutexLock lock(&mutex_);
    absl::Status refused = health_;
    if (refused.ok()) refused = checked;
    if (refused.ok() && closing_) refused = absl::CancelledError("the store is being closed");
    // A batch is never refused if none waits: CheckBatch bounds the size of one batch.
    if (refused.ok() && !waiting_.empty() && metrics_.waiting_bytes + bytes > max_waiting_bytes_) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("batch of ", bytes, " bytes: ", metrics_.waiting_bytes,
                       " bytes wait to be written already, allowed are ", max_waiting_bytes_));
    }
    if (!refused.ok()) {
      ++metrics_.refused;
      return refused;
    }
    sequence = next_++;
    waiting_.push_back({sequence, std::move(batch), std::move(done), bytes});
    ++metrics_.waiting;
    metrics_.waiting_bytes += bytes;
  }
  changed_.Signal();
  return sequence;
}

void CommitQueue::Stop(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (health_.ok()) health_ = status;
}

absl::Status CommitQueue::WriteGroup(const std::vector<Entry>& group) {
  {
    MutexLock lock(&mutex_);
    if (!health_.ok()) return health_;
  }
  const absl::Duration start = clock_();
  const absl::Status status = write_(group);
  const absl::Duration took = clock_() - start;
  MutexLock lock(&mutex_);
  metrics_.batches_per_write.Observe(static_cast<double>(group.size()));
  metrics_.write_seconds.Observe(absl::ToDoubleSeconds(took));
  if (!status.ok()) {
    if (health_.ok()) health_ = status;
    return status;
  }
  durable_ = group.back().sequence;
  return status;
}

std::vector<CommitQueue::Entry> CommitQueue::NextGroup() {
  MutexLock lock(&mutex_);
  while (waiting_.empty() && !closing_) changed_.Wait(&mutex_);
  const size_t count = std::min(waiting_.size(), max_batches_);
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<Entry> group(std::move_iterator(waiting_.begin()), std::move_iterator(end));
  waiting_.erase(waiting_.begin(), end);
  return group;
}

void CommitQueue::Run() {
  while (true) {
    std::vector<Entry> group = NextGroup();
    if (group.empty()) return;
    const absl::Status status = WriteGroup(group);
    {
      MutexLock lock(&mutex_);
      for (const Entry& entry : group) {
        --metrics_.waiting;
        metrics_.waiting_bytes -= entry.bytes;
        if (status.ok()) metrics_.committed_bytes += entry.bytes;
      }
      (status.ok() ? metrics_.commits : metrics_.failed) += group.size();
    }
    for (Entry& entry : group) entry.done(status);
  }
}

uint64_t CommitQueue::last_sequence() const {
  MutexLock lock(&mutex_);
  return durable_;
}

absl::Status CommitQueue::Health() const {
  MutexLock lock(&mutex_);
  return health_;
}

StoreMetrics CommitQueue::Metrics() const {
  MutexLock lock(&mutex_);
  return metrics_;
}

}  // namespace nibble
