// A store in memory, for tests and for coordinators that need not outlive their process: the rules
// of store.h, without the disk. What the disk would be is a MemoryDisk, which outlives the stores
// opened on it, so that a restart can be played through.
//
// Ownership: shares the disk. Thread-safety: that of Store; a MemoryDisk by itself is opaque.
#ifndef NIBBLE_SERVER_STORE_MEMORY_STORE_H_
#define NIBBLE_SERVER_STORE_MEMORY_STORE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/store/commit_queue.h"
#include "server/store/store.h"
#include "server/store/store_metrics.h"

namespace nibble {

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
  struct Record {
    std::string bytes;
    std::vector<std::string> topics;
  };

  std::mutex mutex_;
  // All below is guarded by mutex_.
  bool open_ = false;
  bool created_ = false;
  StoreInfo info_;
  std::map<std::pair<std::string, std::string>, Value> entities_;  // (kind, key) →
  std::map<uint64_t, Record> journal_;
  std::map<std::string, std::set<uint64_t>> topics_;
};

class MemoryStore : public Store {
 public:
  // FailedPrecondition for the disk of another cluster, naming both; NotFound where there is no
  // store and none is to be created; Unavailable while another store has the disk.
  static absl::StatusOr<std::unique_ptr<MemoryStore>> Open(std::shared_ptr<MemoryDisk> disk,
                                                           const StoreOptions& options);
  ~MemoryStore() override;

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
  MemoryStore(std::shared_ptr<MemoryDisk> disk, const StoreOptions& options,
              uint64_t last_sequence);
  void Apply(absl::Span<const CommitQueue::Entry> group);

  const std::shared_ptr<MemoryDisk> disk_;
  CommitQueue queue_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_MEMORY_STORE_H_
