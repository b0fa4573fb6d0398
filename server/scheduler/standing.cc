#include "server/scheduler/standing.h"

namespace nibble::scheduler {

Standing FindStanding(const World& world) {
  const std::vector<JobState>& jobs = world.jobs();
  Standing standing{.ahead = std::vector<int64_t>(jobs.size(), 0),
                    .owns = std::vector<bool>(jobs.size(), false),
                    .owned = std::vector<int64_t>(world.ledger().size(), 0)};
  std::vector<int64_t>& owned = standing.owned;
  for (int j : world.Line()) {
    const int queue = jobs[j].queue;
    if (queue < 0) continue;
    standing.ahead[j] = owned[queue];
    if (!IsActive(jobs[j].phase) || !world.ledger().HasQuota(queue)) continue;
    if (owned[queue] + jobs[j].size > world.ledger().account(queue).queue->quota) continue;
    owned[queue] += jobs[j].size;
    standing.owns[j] = true;
  }
  return standing;
}

}  // namespace nibble::scheduler
