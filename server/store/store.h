// The durable memory of the coordinator: entities (what is) and a journal (what happened), changed
// together by batches. It carries bytes and does not know what they mean.
//
// Order. Append takes a batch and gives it the next sequence number; batches are applied in that
// order, each as a whole or not at all, and callbacks are called in it, one after the other. A
// caller that must decide in order holds its lock while it calls Append, which never waits for the
// disk, and lets go of it before it waits.
//
// Durability. A batch whose callback got OK is on the disk and is found by every later opening.
// Batches that wait at the same time share one synced write. Reads show a prefix of the batches in
// which every acknowledged one is, and none that is not durable.
//
// Failure. A write that fails (ResourceExhausted: the disk is full; Unavailable: it reported an
// error; NotFound: the store's directory or a file of it is gone; else as the status says) fails
// its batches, and those that waited behind it, and stops the store: whatever is appended from then
// on is refused with the same error, and Health says so. It is not tried again: after a failed
// fsync the kernel may count the lost bytes as written, and the next fsync would succeed without
// them. Whether the batches of the failed write are on the disk is not known to this process;
// opening the store again decides it, for good, as recovery writes whatever it accepts into new
// files. So a coordinator whose store is stopped has applied nothing that is not durable, keeps
// answering reads, refuses changes, and ends to be started again; a client repeats its request
// under its request id and learns what became of it.
//
// Damage. Bytes that are not as they were written are DataLoss, naming the file or the value;
// they are never handed out.
//
// Ownership: the caller owns the store, and callbacks what they capture; destroying the store first
// writes what was appended, and calls every callback, then gives the place free for the next.
// Thread-safety: all methods, from any number of threads. Callbacks run in the store's own thread,
// without a lock held: they may call anything but Commit, TrimJournal and the destructor.
#ifndef NIBBLE_SERVER_STORE_STORE_H_
#define NIBBLE_SERVER_STORE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/store/store_metrics.h"

namespace nibble {

// Bounds of what a batch may hold; beyond them InvalidArgument, before anything is stored.
inline constexpr size_t kMaxStoreKindBytes = 64;
inline constexpr size_t kMaxStoreKeyBytes = 1024;  // of an entity's key, and of a topic
inline constexpr size_t kMaxStoreTopics = 64;      // of one record
inline constexpr size_t kMaxStoreBatchBytes = size_t{16} << 20;
inline constexpr size_t kMaxClusterNameBytes = 128;

struct StoreChange {
  std::string kind;                  // 1 to kMaxStoreKindBytes bytes, none of them zero
  std::string key;                   // 1 to kMaxStoreKeyBytes bytes
  std::optional<std::string> value;  // none deletes; deleting what is not there is no error
};

struct StoreBatch {
  std::string record;                // one journal record; may be empty
  std::vector<std::string> topics;   // under which it is found again; 1 to … bytes, none zero
  std::vector<StoreChange> changes;  // applied in order
};

struct StoredEntity {
  absl::string_view kind;
  absl::string_view key;
  absl::string_view value;
  uint64_t sequence;  // of the batch that wrote it
};

struct StoredRecord {
  uint64_t sequence;
  absl::string_view record;
  absl::Span<const std::string> topics;
};

struct StoreInfo {
  std::string cluster;
  uint64_t last_sequence = 0;   // of the last durable batch; the first batch ever has 1
  uint64_t first_sequence = 1;  // of the oldest record kept; last_sequence + 1 where none is
};

struct StoreOptions {
  std::string cluster;  // 1 to kMaxClusterNameBytes printable ASCII characters
  bool create_if_missing = true;
  // Time since some fixed moment, never going back; for metrics only. None: steady_clock.
  std::function<absl::Duration()> clock;
  // What one synced write takes at most, and what may wait for it in all.
  size_t max_batches_per_write = 1024;
  size_t max_waiting_bytes = size_t{64} << 20;
};

class Store {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  // What is viewed lives during the call. An error ends the reading, which returns it.
  using UseEntity = absl::FunctionRef<absl::Status(const StoredEntity&)>;
  using UseRecord = absl::FunctionRef<absl::Status(const StoredRecord&)>;

  virtual ~Store() = default;

  // The sequence number that the batch has if it succeeds; `done` is called later, once. On an
  // error nothing is stored and `done` is never called: InvalidArgument for a batch beyond the
  // bounds, ResourceExhausted where max_waiting_bytes already wait, or the error that stopped the
  // store (the only one after which Health is not OK).
  virtual absl::StatusOr<uint64_t> Append(StoreBatch batch, Done done) = 0;
  // Append, and waits. The sequence number of the batch, durable.
  absl::StatusOr<uint64_t> Commit(StoreBatch batch);

  // Every entity of one kind, or of all where it is empty, by kind and key.
  virtual absl::Status ReadEntities(absl::string_view kind, UseEntity use) const = 0;
  // NotFound where there is none.
  virtual absl::StatusOr<std::string> ReadEntity(absl::string_view kind,
                                                 absl::string_view key) const = 0;
  // At most `limit` records from sequence number `from` on. OutOfRange, naming the bound, before
  // first_sequence (what was between is trimmed) and beyond last_sequence + 1.
  virtual absl::Status ReadJournal(uint64_t from, size_t limit, UseRecord use) const = 0;
  // Likewise those of a topic; what was trimmed is passed over without an error.
  virtual absl::Status ReadTopic(absl::string_view topic, uint64_t from, size_t limit,
                                 UseRecord use) const = 0;

  // Drops the records up to and with `through` (at most the last), and frees their space in time.
  // Entities stay. Trimming what is trimmed already is no error; OutOfRange beyond the last.
  virtual absl::Status TrimJournal(uint64_t through) = 0;

  // A copy of the store at one moment, no earlier than the call, in a new directory; it opens as a
  // store of the same cluster. AlreadyExists where something is there; Unimplemented for a store
  // that has no files.
  virtual absl::Status Backup(const std::string& directory) const = 0;
  // Reads everything there is: DataLoss, naming it, for what is damaged or missing.
  virtual absl::Status Verify() const = 0;

  // Looks whether the store's files are still where it was opened, and stops the store, as a failed
  // write does, where they are not (NotFound, naming the directory). Every write looks before it is
  // acknowledged; this is for a store that nobody writes to. A store that has no files is in place.
  virtual absl::Status CheckPlace() { return Health(); }

  virtual StoreInfo Info() const = 0;
  // OK, or the error that stopped the store.
  virtual absl::Status Health() const = 0;
  virtual StoreMetrics Metrics() const = 0;
};

// InvalidArgument, naming the field, its size and the bound.
absl::Status CheckBatch(const StoreBatch& batch);
absl::Status CheckClusterName(absl::string_view cluster);
// What it counts for against kMaxStoreBatchBytes.
size_t BatchBytes(const StoreBatch& batch);

// The statuses of ReadJournal and TrimJournal, the same for every store.
absl::Status CheckJournalStart(uint64_t from, const StoreInfo& info);
absl::Status CheckTrim(uint64_t through, const StoreInfo& info);

// The clock of `options`, or the default one.
std::function<absl::Duration()> ClockOf(const StoreOptions& options);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_STORE_H_
