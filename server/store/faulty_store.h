// A store whose writes fail as they are told to, for tests of those who use one: it stands before
// another store and passes on what it lets through.
//
// Faults count appended batches, from 1: FailAppend(3, …) fails the third. As the real store does,
// it stops at the first failure; what becomes of the failed batch is what the fault says, so that a
// test can play both ends of an outcome that the process cannot know. The store behind is opened
// again after this one is destroyed, as after a restart.
//
// Ownership: owns the store behind it. Thread-safety: that of Store; Hold, Release and FailAppend
// too.
#ifndef NIBBLE_SERVER_STORE_FAULTY_STORE_H_
#define NIBBLE_SERVER_STORE_FAULTY_STORE_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/store/commit_queue.h"
#include "server/store/store.h"
#include "server/store/store_metrics.h"

namespace nibble {

class FaultyStore : public Store {
 public:
  enum class Fault {
    kLost,      // reported Unavailable, and never written
    kWritten,   // reported Unavailable, and yet on the disk after a restart
    kDiskFull,  // reported ResourceExhausted, and never written
  };

  explicit FaultyStore(std::unique_ptr<Store> behind);
  // Batches that are held are let through first.
  ~FaultyStore() override;

  // The `count`th batch appended to this store, counted from 1, fails so.
  void FailAppend(int64_t count, Fault fault);
  // From now on batches are taken and wait, as before a slow disk, until they are released.
  void Hold();
  // Lets the oldest `count` of them go on; all, and all later ones, where it is negative.
  void Release(int64_t count = -1);

  absl::StatusOr<uint64_t> Append(StoreBatch batch, Done done) override;
  absl::Status ReadEntities(absl::string_view kind, UseEntity use) const override;
  absl::StatusOr<std::string> ReadEntity(absl::string_view kind,
                                         absl::string_view key) const override;
  absl::Status ReadJournal(uint64_t from, size_t limit, UseRecord use) const override;
  absl::Status ReadTopic(absl::string_view topic, uint64_t from, size_t limit,
                         UseRecord use) const override;
  absl::Status TrimJournal(uint64_t through) override;
  absl::Status Backup(const std::string& directory) const override;
  absl::Status Verify() const override;
  StoreInfo Info() const override;
  absl::Status Health() const override;
  StoreMetrics Metrics() const override;

 private:
  absl::Status PassOn(const CommitQueue::Entry& entry);

  const std::unique_ptr<Store> behind_;

  std::mutex mutex_;
  std::condition_variable released_;
  // Guarded by mutex_.
  std::map<int64_t, Fault> faults_;
  int64_t passed_ = 0;    // batches that were let through or failed
  int64_t allowed_ = -1;  // batches that may go on; negative: all

  CommitQueue queue_;  // last: its thread uses the above
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_FAULTY_STORE_H_
