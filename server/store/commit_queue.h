// Group commit: batches queue up in the order in which they came, and one thread writes all that
// wait with one synced write, while the next ones gather.
//
// There is no waiting for company: a batch that comes alone is written at once, and the longer a
// write takes the more share the next.
//
// Ownership: owns its thread and the waiting batches; the writer and what it uses outlive it.
// Thread-safety: all methods, from any number of threads; the writer and the callbacks run in the
// queue's thread, with no lock held.
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
#include "server/store/store_metrics.h"

namespace nibble {

class CommitQueue {
 public:
  struct Entry {
    uint64_t sequence;
    StoreBatch batch;
    Store::Done done;
    size_t bytes;
  };
  // Makes a group durable, in order, all of it or none. An error stops the queue.
  using Write = std::function<absl::Status(absl::Span<const Entry> group)>;

  // The next batch has the number last_sequence + 1.
  CommitQueue(const StoreOptions& options, uint64_t last_sequence, Write write);
  ~CommitQueue();  // Close
  CommitQueue(const CommitQueue&) = delete;
  CommitQueue& operator=(const CommitQueue&) = delete;

  // See Store::Append.
  absl::StatusOr<uint64_t> Append(StoreBatch batch, Store::Done done);

  // Stops as a failed write does, for an error that was seen elsewhere; the first one stays.
  void Stop(const absl::Status& status);
  // Writes what waits and ends the thread; what is appended after it is refused (Cancelled).
  void Close();

  // Of the last batch that is durable; counted before its callback is called.
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
  // All below is guarded by mutex_.
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
