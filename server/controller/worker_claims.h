// What a worker may claim in its reports. Its certificate or token proves its name alone: each
// claim about a job is bound to what the coordinator has assigned to that worker, and is refused
// otherwise. A worker that was assigned something can still lie about it; it cannot speak of what
// it was not given.
//
//   gang      ranks of the live attempt that are placed on it; what rank 0 reports of the whole
//             gang only where rank 0 is
//   shard     of a rank that it runs; a copy that it was ordered to make; or, after the store was
//             restored, of an earlier epoch, whose orders the store may have forgotten
//   damage    its own copy; a copy that it reads: of the checkpoint that its attempt began from, of
//             a copy or a task that it was ordered to make
//   task      one that it was ordered to carry out
//   orphan    of a job that the store does not know, or that may have lived on after the backup
//             that the store was restored from
//
// PermissionDenied names the worker and what it was not given.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_CONTROLLER_WORKER_CLAIMS_H_
#define NIBBLE_SERVER_CONTROLLER_WORKER_CLAIMS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/state.h"

namespace nibble {

// `ordered`: whether a recent desired state of the worker's stream has ordered it.

// OK also for a report that is stale, of an attempt that is over: it changes nothing.
absl::Status CheckGangClaim(const State& state, const std::string& worker,
                            const v1::GangReport& report);
// OK also for a shard whose checkpoint the state does not know: only the worker of its rank can
// report it first (DecideShardReport).
absl::Status CheckShardClaim(const State& state, const std::string& worker,
                             const v1::ShardReport& report, bool ordered);
// `ordered`: a copy of the shard, or a task of its checkpoint.
absl::Status CheckDamageClaim(const State& state, const std::string& worker,
                              const v1::DamagedShard& damage, bool ordered);
absl::Status CheckTaskClaim(const std::string& worker, const v1::TaskReport& report, bool ordered);
// `store`: that ordered the data.
absl::Status CheckOrphanClaim(const State& state, const std::string& worker, const std::string& job,
                              const v1::StoreIdentity& store);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WORKER_CLAIMS_H_
