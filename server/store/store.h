// The coordinator's durable store: entities (the current state) and a journal (the history),
// changed together by batches. It does not interpret the bytes that it stores.
//
// Order. Append gives each batch the next sequence number. Batches are applied in that order, each
// atomically, and callbacks are called in that order, one at a time. A caller that must decide in
// order holds its lock while it calls Append, which never waits for the disk, and releases it
// before it waits.
//
// Durability. A batch whose callback got OK is on the disk, and every later opening finds it.
// Batches that wait at the same time share one synced write. Reads see a prefix of the batches that
// contains every acknowledged one and only durable ones.
//
// Failure. A write that fails (ResourceExhausted: the disk is full; Internal: the disk reported an
// error; NotFound: the store's directory or a file in it is gone) fails its batches and those that
// waited behind it, and stops the store: every later Append is refused with the same error, which
// Health returns, too. The write is not retried, because after a failed fsync the kernel may count
// the lost bytes as written, and the next fsync would succeed without them. This process cannot
// know whether the batches of the failed write are on the disk; the next opening decides it for
// good, because recovery writes whatever it accepts into new files. So a coordinator whose store
// has stopped has applied nothing that is not durable, keeps answering reads, refuses changes, and
// exits to be restarted; a client repeats its request under its request id and learns the outcome.
//
// Damage. Bytes that differ from those written are DataLoss, naming the file or the value; they are
// never returned.
//
// Ownership: the caller owns the store, and callbacks own what they capture. The destructor first
// writes all appended batches and calls their callbacks, then closes the store, which can be opened
// again afterwards. Thread-safety: all methods may be called from any number of threads. Callbacks
// run in the store's own thread, without a lock: they may call anything except Commit, TrimJournal
// and the destructor.
#ifndef NIBBLE_SERVER_STORE_STORE_H_
#define NIBBLE_SERVER_STORE_STORE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace nibble {

struct StoreHistogram {
  explicit StoreHistogram(std::vector<double> upper_bounds)
      : bounds(std::move(upper_bounds)), counts(bounds.size() + 1) {}

  void Observe(double value) {
    const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
    ++counts[static_cast<size_t>(bucket)];
    ++count;
    sum += value;
  }

  std::vector<double> bounds;  // ascending, inclusive upper bounds
  std::vector<uint64_t>
      counts;  // [bounds + 1], not cumulative; the last counts values above all bounds
  uint64_t count = 0;
  double sum = 0;
};

// Counters of a store, independent of how metrics are exported.
struct StoreMetrics {
  uint64_t commits = 0;          // batches acknowledged
  uint64_t failed = 0;           // batches that failed after Append accepted them
  uint64_t refused = 0;          // batches that Append refused
  uint64_t committed_bytes = 0;  // records, keys and values of acknowledged batches
  uint64_t waiting = 0;          // batches waiting now
  uint64_t waiting_bytes = 0;
  // Per synced write: the number of batches, and the duration including the sync.
  StoreHistogram batches_per_write{{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}};
  StoreHistogram write_seconds{
      {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}};
};

// Bounds on a batch; beyond them InvalidArgument, before anything is stored.
inline constexpr size_t kMaxStoreKindBytes = 64;
inline constexpr size_t kMaxStoreKeyBytes = 1024;
inline constexpr size_t kMaxStoreBatchBytes = size_t{16} << 20;
inline constexpr size_t kMaxClusterNameBytes = 128;

struct StoreChange {
  std::string kind;                  // 1 to kMaxStoreKindBytes bytes, none of them zero
  std::string key;                   // 1 to kMaxStoreKeyBytes bytes
  std::optional<std::string> value;  // none deletes; deleting a missing entity is no error
};

struct StoreBatch {
  std::string record;                // one journal record; may be empty
  std::vector<StoreChange> changes;  // applied in order
};

struct StoredEntity {
  absl::string_view kind;
  absl::string_view key;
  absl::string_view value;
  uint64_t sequence;  // the batch that wrote it
};

struct StoredRecord {
  uint64_t sequence;
  absl::string_view record;
};

struct StoreInfo {
  std::string cluster;
  uint64_t last_sequence = 0;   // the last durable batch; the first batch ever has 1
  uint64_t first_sequence = 1;  // the oldest record kept; last_sequence + 1 if there is none
};

struct StoreOptions {
  std::string cluster;  // 1 to kMaxClusterNameBytes printable ASCII characters
  bool create_if_missing = true;
  // A monotonic clock, for metrics only. None: steady_clock.
  std::function<absl::Duration()> clock;
  // Bounds on one synced write, and on all batches that wait for one.
  size_t max_batches_per_write = 1024;
  size_t max_waiting_bytes = size_t{64} << 20;
};

class Store {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  // Views are valid during the call. An error ends the reading, which returns it.
  using UseEntity = absl::FunctionRef<absl::Status(const StoredEntity&)>;
  using UseRecord = absl::FunctionRef<absl::Status(const StoredRecord&)>;

  virtual ~Store() = default;

  // Returns the sequence number that the batch gets if it succeeds; `done` is called once, later.
  // On an error nothing is stored and `done` is never called: InvalidArgument for a batch beyond
  // the bounds, ResourceExhausted where max_waiting_bytes already wait, or the error that stopped
  // the store (the only one after which Health is not OK).
  virtual absl::StatusOr<uint64_t> Append(StoreBatch batch, Done done) = 0;
  // Appends and waits until the batch is durable. Returns its sequence number.
  absl::StatusOr<uint64_t> Commit(StoreBatch batch);

  // Reads every entity of one kind, or of all kinds if `kind` is empty, sorted by kind and key.
  virtual absl::Status ReadEntities(absl::string_view kind, UseEntity use) const = 0;
  // Reads at most `limit` records from sequence number `from` on. OutOfRange, naming the bound, if
  // `from` is before first_sequence (earlier records were trimmed) or beyond last_sequence + 1.
  virtual absl::Status ReadJournal(uint64_t from, size_t limit, UseRecord use) const = 0;

  // Drops the records up to and including `through`; their space is freed later. Entities stay.
  // Trimming twice is no error; OutOfRange if `through` is beyond the last record.
  virtual absl::Status TrimJournal(uint64_t through) = 0;

  // Writes a consistent copy of the store, no older than the call, to a new directory; it opens as
  // a store of the same cluster. AlreadyExists where `directory` exists; Unimplemented for a store
  // without files.
  virtual absl::Status Backup(const std::string& directory) const = 0;
  // Reads the whole store. DataLoss names the first file or value that is damaged or missing.
  virtual absl::Status Verify() const = 0;

  // Checks that the store's files are still where it was opened and, if not, stops the store as a
  // failed write does (NotFound, naming the directory). Every write checks this before it is
  // acknowledged; CheckPlace is for a store that is not being written. A store without files is
  // always in place.
  virtual absl::Status CheckPlace() { return Health(); }

  virtual StoreInfo Info() const = 0;
  // OK, or the error that stopped the store.
  virtual absl::Status Health() const = 0;
  virtual StoreMetrics Metrics() const = 0;
};

// InvalidArgument, naming the field, its size and the bound.
absl::Status CheckBatch(const StoreBatch& batch);
absl::Status CheckClusterName(absl::string_view cluster);
// The size of a batch that counts against kMaxStoreBatchBytes.
size_t BatchBytes(const StoreBatch& batch);

// The OutOfRange errors of ReadJournal and TrimJournal, shared by all stores.
absl::Status CheckJournalStart(uint64_t from, const StoreInfo& info);
absl::Status CheckTrim(uint64_t through, const StoreInfo& info);

// The clock of `options`, or the default one.
std::function<absl::Duration()> ClockOf(const StoreOptions& options);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_STORE_H_
