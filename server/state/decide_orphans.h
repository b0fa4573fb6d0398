// A store that was lost or restored learns again what its workers know: jobs, attempts,
// checkpoints. docs/decisions/0008-whose-store.md gives the argument. As decide.h: pure, nothing is
// changed.
//
// What workers have of a job that their coordinator's present store and epoch did not order comes
// as OrphanEvidence. Of a job that the state knows it is taken over at once, as far as it is the
// job's own; of any other it waits for a person, who adopts or removes it.
//
// Statuses as State::Validate. Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_DECIDE_ORPHANS_H_
#define NIBBLE_SERVER_STATE_DECIDE_ORPHANS_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/decide.h"
#include "server/state/decide_gang.h"
#include "server/state/state.h"

namespace nibble {

// What one worker has of one job; `orphan.shards` are all that the present epoch did not order.
struct OrphanEvidence {
  std::string worker;
  const v1::Orphan* orphan = nullptr;
};
using Evidence = absl::Span<const OrphanEvidence>;  // of one job

// Whether both are the same store in the same epoch; two that say nothing are.
inline bool SameEpoch(const v1::StoreIdentity& a, const v1::StoreIdentity& b) {
  return a.id() == b.id() && a.epoch() == b.epoch();
}

// A worker has seen more of this store than the store has: a later epoch, an update of this epoch
// that it cannot have heard of from this history, or an attempt of this epoch that was never
// launched. The store is an older copy of itself: a new epoch begins. `told`: the latest update
// that the worker can have heard of, that is the last before this process began, or one that this
// process has told it.
MaybeUpdate DecideStoreBehind(const State& state, const v1::ConnectRequest& report, int64_t told,
                              const Caller& caller);

// Whether what belongs to `store` is of this very job: it was made in an earlier epoch of the
// state's store, or before stores had an identity, or the job was adopted from another store.
bool IsOwn(const State& state, const v1::JobRecord& job, const v1::StoreIdentity& store);

// Of a job that is known: attempts that are newer than the state's, the timeline of the living one,
// and checkpoints all of whose shards are held.
MaybeUpdate DecideRecover(const State& state, const std::string& job, Evidence evidence,
                          const Caller& caller);

// See AdoptJob and RemoveOrphan of the contract. `grace_ms`: an orphan is at least so old before it
// is removed.
absl::StatusOr<Decision<v1::AdoptJobResponse>> Decide(const State& state,
                                                      const v1::AdoptJobRequest& request,
                                                      const Caller& caller, Evidence evidence);
absl::StatusOr<Decision<v1::RemoveOrphanResponse>> Decide(const State& state,
                                                          const v1::RemoveOrphanRequest& request,
                                                          const Caller& caller, Evidence evidence,
                                                          int64_t grace_ms);
// The worker has nothing any more of jobs whose removal it was ordered; `orphans` is what it has.
MaybeUpdate DecideRemovalsDone(const State& state, const std::string& worker,
                               const std::set<std::string>& orphans, const Caller& caller);

// For people.
v1::OrphanJob DescribeOrphan(const State& state, const std::string& job, Evidence evidence);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_DECIDE_ORPHANS_H_
