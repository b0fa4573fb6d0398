// The newest desired state from the coordinator, and what follows from it for the gangs on this
// worker: which orders apply to which gang, and until when a gang may take to stop.
//
// An order names a gang by job and attempt. Ranks that another coordinator store launched under the
// same name and number are not the ones that it means; such an order can only stop them.
//
// Ownership: values. Thread-safety: immutable once made; pure functions.
#ifndef NIBBLE_WORKER_AGENT_DESIRED_STATE_H_
#define NIBBLE_WORKER_AGENT_DESIRED_STATE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/gang_rules.h"

namespace nibble {

// When gangs that were ordered to stop are killed, on this daemon's monotonic clock; by job and
// attempt.
using StopDeadlines = std::map<std::pair<std::string, int64_t>, int64_t>;

// The order for Reconcile.
WantedGang WantedOf(const v1::DesiredGang& desired, const StopDeadlines& deadlines);

// A gang on this worker, and the store that ordered it.
struct GangOrigin {
  std::string job;
  int64_t attempt = 0;
  v1::StoreIdentity store;
};

class DesiredState {
 public:
  // `before`: the previous desired state, null if there is none. A repeated order to stop does not
  // extend its deadline.
  DesiredState(const DesiredState* before, v1::ConnectResponse response, int64_t now_ms);

  const v1::StoreIdentity& store() const { return response_.store(); }
  // The order for the gang, by name alone; null if there is none.
  const v1::DesiredGang* Find(const std::string& job, int64_t attempt) const;
  // The order that applies to a gang that is here; null if there is none.
  const v1::DesiredGang* FindFor(const GangOrigin& gang) const;
  // The orders for Reconcile, given the gangs here. An order to stop ranks that are not here has no
  // effect.
  std::vector<WantedGang> WantedGangs(absl::Span<const GangOrigin> here) const;
  // Whether the coordinator may end a gang that it does not want: it was ordered by this store in
  // this epoch, or its removal as an orphan was ordered.
  bool MayEnd(const GangOrigin& gang) const;
  // Jobs whose removal as orphans was ordered.
  const std::set<std::string>& removed() const { return removed_; }

 private:
  const v1::ConnectResponse response_;
  StopDeadlines stop_deadlines_;
  std::set<std::string> removed_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_DESIRED_STATE_H_
