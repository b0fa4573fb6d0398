// The coordinator's view of its workers: what each of them should be running, and when each was
// last heard from.
//
// Thread-safety: pure functions; Leases has none of its own.
#ifndef NIBBLE_SERVER_STATE_WORKERS_H_
#define NIBBLE_SERVER_STATE_WORKERS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/state.h"

namespace nibble {

// What a worker may say of itself. InvalidArgument names the field, its value and the bound.
absl::Status CheckIdentity(const v1::WorkerIdentity& identity);

// Every gang with ranks on this incarnation of the worker, complete: sending it again changes
// nothing. The worker kills any other gang.
std::vector<v1::DesiredGang> DesiredGangs(const State& state, const std::string& worker,
                                          int64_t incarnation);

// Every shard of a checkpoint, by rank, and the present workers that store it.
std::vector<v1::DesiredReplica> ShardSources(const State& state, const v1::CheckpointRef& ref);

// Deletion of checkpoints. Invariants:
//   - A shard leaves a worker only by an order that names it, the epoch that it must be of, and
//   why.
//   - What another epoch or store has ordered is never deleted by such an order: the store knows
//   all
//     shards only of its present epoch (docs/decisions/0008-whose-store.md).
//   - Only retention deletes at once, the rest goes to the worker's trash. It needs a newer
//     checkpoint that was committed in the present epoch, is not abandoned, and is whole: every
//     shard is on a present worker (Draft::NewestWhole).
//   - So the newest whole checkpoint of a job is deleted by nothing but a person's request.
//   - A shard of a checkpoint that is being restored is not deleted.
//
// The orders for those of a worker's shards whose checkpoint is not in the catalogue: within an
// epoch the store loses nothing, so it was deleted, as its record says, or the attempt ended before
// the commit. Shards of a live attempt stay unless they are outlived.
std::vector<v1::DroppedShard> DroppedShards(const State& state,
                                            absl::Span<const v1::ShardReport> held);

// Whether a shard belongs to a checkpoint that is not in the catalogue and was deleted, or is older
// than a good one of its job: it came too late. It is not accepted, even from a living attempt.
bool IsOutlived(const State& state, const v1::ShardReport& shard);

// When each worker was last heard from. Volatile on purpose: a heartbeat per second from every
// worker is not history, so only its outcome is journalled, that a lease expired (WorkerLost) or a
// worker is present (WorkerRegistered). After a restart of the coordinator every present worker
// counts as just heard from, so that the coordinator's own absence costs no worker its lease.
//
// Callers pass the time, by any one clock that never goes back.
class Leases {
 public:
  struct Lease {
    std::string worker;
    int64_t incarnation = 0;
    int64_t heard_ms = 0;  // when it was last heard from
  };

  explicit Leases(int64_t lease_ms) : lease_ms_(lease_ms) {}

  // Every worker that is present in the state counts as heard from now; others are unknown.
  void Restart(const State& state, int64_t now_ms);
  // Records a heartbeat; one of an older incarnation is ignored.
  void Hear(const std::string& worker, int64_t incarnation, int64_t now_ms);
  void Drop(const std::string& worker);

  // The workers not heard from for longer than a lease, longest first.
  std::vector<Lease> Expired(int64_t now_ms) const;
  // When the next lease expires without a heartbeat; unset if there is none.
  std::optional<int64_t> NextExpiry() const;
  // Unset if never.
  std::optional<int64_t> LastHeard(const std::string& worker) const;

 private:
  int64_t lease_ms_;
  std::map<std::string, Lease> leases_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_WORKERS_H_
