// Group commit: batches queue up in order of arrival, and one thread writes all waiting batches
// with one synced write, while the next ones queue up.
//
// A write is never delayed to gather more batches: a lone batch is written at once, and the longer
// a write takes, the more batches share the next one.
//
// Ownership: owns its thread and the waiting batches; the writer and everything it uses outlive the
// queue. Thread-safety: all methods may be called from any thread; the writer and the callbacks run
// in the queue's thread, without a lock.
#ifndef NIBBLE_SERVER_STORE_COMMIT_QUEUE_H_
#define NIBBLE_SERVER_STORE_COMMIT_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "server/store/store.h"

namespace nibble {

class CommitQueue {
 public:
  struct Entry {
    uint64_t sequence;
    StoreBatch batch;
    Store::Done done;
    size_t bytes;
  };
  // Makes a group durable, in order and atomically. An error stops the queue.
  using Write = std::function<absl::Status(absl::Span<const Entry> group)>;

  // The next batch gets the number last_sequence + 1.
  CommitQueue(const StoreOptions& options, uint64_t last_sequence, Write write);
  ~CommitQueue();  // Close
  CommitQueue(const CommitQueue&) = delete;
  CommitQueue& operator=(const CommitQueue&) = delete;

  // See Store::Append.
  absl::StatusOr<uint64_t> Append(StoreBatch batch, Store::Done done);

  // Stops the queue, like a failed write, because of an error noticed elsewhere. The first error
  // that stopped the queue is kept.
  void Stop(const absl::Status& status);
  // Writes the waiting batches and ends the thread; later batches are refused (Cancelled).
  void Close();

  // The sequence number of the last durable batch; updated before its callback is called.
  uint64_t last_sequence() const;
  absl::Status Health() const;
  StoreMetrics Metrics() const;

 private:
  void Run();
  // Waits for batches and moves a group of them out of the queue; empty once the queue is closed.
  std::vector<Entry> NextGroup();
  // Writes a group, and stops the queue on an error.
  absl::Status WriteGroup(const std::vector<Entry>& group);

  const size_t max_batches_;
  const size_t max_waiting_bytes_;
  const std::function<absl::Duration()> clock_;
  const Write write_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Entry> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ ABSL_GUARDED_BY(mutex_);
  uint64_t durable_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  StoreMetrics metrics_ ABSL_GUARDED_BY(mutex_);

  Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_COMMIT_QUEUE_H_
