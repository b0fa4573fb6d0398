// Whose orders this worker follows, and has followed: which stores of coordinators it has obeyed,
// and for each job here the newest order that it got for it. What another store, or an earlier
// epoch of the same one, has ordered is not the present coordinator's to give up: it is reported as
// an orphan (docs/decisions/0008-whose-store.md).
//
// On disk, below the data directory: stores, a line "ID EPOCH SEQUENCE" for each store as it was
// when shards were last accepted, the one followed now last; jobs/JOB/order, the newest order of a job as v1.Orphan and its CRC-32C. What cannot be read
// counts as not known: such things are orphans, never dropped.
//
// Ownership: values and the files. Thread-safety: all methods.
#ifndef NIBBLE_WORKER_AGENT_PROVENANCE_H_
#define NIBBLE_WORKER_AGENT_PROVENANCE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/nibble/v1/worker_link.pb.h"

namespace nibble {

// Whether both are the same store in the same epoch; two that say nothing are.
inline bool SameEpoch(const v1::StoreIdentity& a, const v1::StoreIdentity& b) {
  return a.id() == b.id() && a.epoch() == b.epoch();
}

class Provenance {
 public:
  using Clock = std::function<int64_t()>;  // milliseconds, monotonic

  Provenance(std::string data_directory, Clock clock);
  Provenance(const Provenance&) = delete;
  Provenance& operator=(const Provenance&) = delete;

  // A desired state has come that follows from `store`. Whether it is to be obeyed: not where the
  // store is older than it was when this worker last heard of it. Durable before it is obeyed;
  // Unavailable where it cannot be.
  absl::Status Hear(const v1::StoreIdentity& store, bool& obey);
  // Makes durable how far the followed store has come: before anybody counts on shards that it has
  // accepted. A store that was put back to before that is told by it, also after this life.
  absl::Status Remember();
  // The store followed now, as it was at its newest; unset: none yet.
  v1::StoreIdentity followed() const;

  // The gang is run here by order of `store`. Durable on return.
  absl::Status NoteOrder(const v1::DesiredGang& gang, const v1::StoreIdentity& store);
  // Of the newest order of the job; unset id: not known.
  v1::StoreIdentity StoreOf(const std::string& job) const;
  // Of the newest order; 0: none is known.
  int64_t AttemptOf(const std::string& job) const;
  // Nothing of the job is left here that an order could explain.
  void Forget(const std::string& job);

  // Splits what the desk reports, and adds what is known of orders that are not the followed
  // store's in its present epoch. `running`: jobs with ranks, and their attempts.
  void Describe(std::vector<v1::ShardReport> shards, const std::map<std::string, int64_t>& running,
                v1::ConnectRequest& report);
  // A report that was described is answered by the store followed now: it knows of the attempts in
  // it. Orders of which there is nothing else here are its own from now on.
  void Answered();

 private:
  std::string OrderPath(const std::string& job) const;
  void LoadStores();
  void LoadOrders();
  absl::Status SaveStores();
  absl::Status SaveOrder(const v1::Orphan& order);
  v1::StoreIdentity FollowedLocked() const;

  const std::string directory_;
  const Clock clock_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<std::string, v1::StoreIdentity> stores_;  // by id, at their newest
  std::string followed_;                             // id
  std::map<std::string, v1::Orphan> orders_;         // by job
  std::map<std::string, int64_t> since_ms_;          // of orphans, by job: by the clock
  std::set<std::string> settled_;  // orders in the latest description that nothing else hangs on
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_PROVENANCE_H_
