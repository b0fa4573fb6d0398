// For tests and benchmarks of stores and of their users: a store in memory, a store whose writes
// fail on request, and random histories with what a store must contain after them.
//
// Ownership: see each class. Thread-safety: stores have that of Store; the rest is free functions
// and values.
#ifndef NIBBLE_SERVER_STORE_STORE_TESTING_H_
#define NIBBLE_SERVER_STORE_STORE_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "server/store/commit_queue.h"
#include "server/store/store.h"

namespace nibble {

// What a MemoryStore leaves behind: it outlives the stores opened on it, so that a test can play a
// restart. Opaque; shared by the stores.
class MemoryDisk {
 public:
  MemoryDisk() = default;
  MemoryDisk(const MemoryDisk&) = delete;
  MemoryDisk& operator=(const MemoryDisk&) = delete;

 private:
  friend class MemoryStore;
  struct Value {
    std::string bytes;
    uint64_t sequence;
  };

  Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  bool created_ ABSL_GUARDED_BY(mutex_) = false;
  StoreInfo info_ ABSL_GUARDED_BY(mutex_);
  // By kind and key.
  std::map<std::pair<std::string, std::string>, Value> entities_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::string> journal_ ABSL_GUARDED_BY(mutex_);
};

// A store in memory that keeps the rules of store.h. Shares its disk.
class MemoryStore : public Store {
 public:
  // FailedPrecondition for the disk of another cluster, naming both; NotFound where the disk has no
  // store and none is to be created; Unavailable while another store has the disk open.
  static absl::StatusOr<std::unique_ptr<MemoryStore>> Open(std::shared_ptr<MemoryDisk> disk,
                                                           const StoreOptions& options);
  ~MemoryStore() override;

  absl::StatusOr<uint64_t> Append(StoreBatch batch, Done done) override;
  absl::Status ReadEntities(absl::string_view kind, UseEntity use) const override;
  absl::Status ReadJournal(uint64_t from, size_t limit, UseRecord use) const override;
  absl::Status TrimJournal(uint64_t through) override;
  absl::Status Backup(const std::string& directory) const override;
  absl::Status Verify() const override;
  StoreInfo Info() const override;
  absl::Status Health() const override;
  StoreMetrics Metrics() const override;

 private:
  MemoryStore(std::shared_ptr<MemoryDisk> disk, const StoreOptions& options,
              uint64_t last_sequence);
  void Apply(absl::Span<const CommitQueue::Entry> group);

  const std::shared_ptr<MemoryDisk> disk_;
  CommitQueue queue_;
};

// A store whose writes fail on request. It forwards everything else to the store behind it, which
// it owns.
//
// Faults count appended batches from 1: FailAppend(3, …) fails the third. Like the real store it
// stops at the first failure; the fault decides what becomes of the failed batch, so that a test
// can play both outcomes, between which the process cannot tell. To play a restart, destroy this
// store and open the one behind it again.
//
// Thread-safety: that of Store; also Hold, Release and FailAppend from any thread.
class FaultyStore : public Store {
 public:
  enum class Fault {
    kLost,      // reported Internal and never written
    kWritten,   // reported Internal, but on the disk after a restart
    kDiskFull,  // reported ResourceExhausted and never written
  };

  explicit FaultyStore(std::unique_ptr<Store> behind);
  // First releases the batches that are held.
  ~FaultyStore() override;

  // The `count`th batch appended to this store, counted from 1, fails with `fault`.
  void FailAppend(int64_t count, Fault fault);
  // From now on batches are accepted but wait, as if the disk were slow, until they are released.
  void Hold();
  // Releases the oldest `count` of them; if negative, all of them and all later ones.
  void Release(int64_t count = -1);

  absl::StatusOr<uint64_t> Append(StoreBatch batch, Done done) override;
  absl::Status ReadEntities(absl::string_view kind, UseEntity use) const override;
  absl::Status ReadJournal(uint64_t from, size_t limit, UseRecord use) const override;
  absl::Status TrimJournal(uint64_t through) override;
  absl::Status Backup(const std::string& directory) const override;
  absl::Status Verify() const override;
  StoreInfo Info() const override;
  absl::Status Health() const override;
  StoreMetrics Metrics() const override;

 private:
  absl::Status PassOn(const CommitQueue::Entry& entry);

  const std::unique_ptr<Store> behind_;

  Mutex mutex_;
  CondVar released_;
  std::map<int64_t, Fault> faults_ ABSL_GUARDED_BY(mutex_);
  int64_t passed_ ABSL_GUARDED_BY(mutex_) = 0;  // batches forwarded or failed so far
  // Batches that may be forwarded now; negative: all.
  int64_t allowed_ ABSL_GUARDED_BY(mutex_) = -1;

  CommitQueue queue_;  // last: its thread uses the members above
};

}  // namespace nibble

namespace nibble::store_testing {

// Changes to a few entities of three kinds, and a record; the same for the same arguments.
StoreBatch RandomBatch(uint64_t seed, size_t value_bytes);

// The content of a store after some batches.
struct Content {
  std::map<std::pair<std::string, std::string>, std::string> entities;
  std::map<uint64_t, std::string> journal;

  void Apply(uint64_t sequence, const StoreBatch& batch);
  friend bool operator==(const Content&, const Content&) = default;
};

// Reads everything that a store serves: all entities, and the journal from its first record.
absl::StatusOr<Content> ReadAll(const Store& store);

// `content` without the records before `first`.
Content From(Content content, uint64_t first);

}  // namespace nibble::store_testing

#endif  // NIBBLE_SERVER_STORE_STORE_TESTING_H_
