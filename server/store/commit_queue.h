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

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
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

  // The last durable batch; updated before its callback is called.
  uint64_t last_sequence() const;
  absl::Status Health() const;
  StoreMetrics Metrics() const;

 private:
  void Run();
  absl::Status WriteGroup(std::vector<Entry>& group);

  const size_t max_batches_;
  const size_t max_waiting_bytes_;
  const std::function<absl::Duration()> clock_;
  const Write write_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // The members up to metrics_ are guarded by mutex_.
  std::vector<Entry> waiting_;
  uint64_t next_;
  uint64_t durable_;
  bool closing_ = false;
  absl::Status health_;
  StoreMetrics metrics_;

  std::mutex join_mutex_;
  std::thread thread_;  // guarded by join_mutex_ after construction
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_COMMIT_QUEUE_H_
