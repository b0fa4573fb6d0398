// Which ranks hang: connected and alive, and without a step for many times as long as their steps
// take. A rank that stands (paused) or has not begun is not held to it.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_AGENT_WATCHDOG_H_
#define NIBBLE_WORKER_AGENT_WATCHDOG_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "worker/trainer/link/link_host.h"

namespace nibble {

struct WatchdogLimits {
  double median_steps = 20;    // without a step for so many times the median
  int64_t least_ms = 120'000;  // and never sooner: checkpoints and validation take their time
};

struct HungRank {
  int32_t rank = 0;
  int64_t since_ms = 0;  // that it has made no step
  bool waits = false;    // in a collective, for others
  std::string detail;    // names the rank, the step and the collective, for people
};

// By rank. Of ranks that hang together all are named: which of them holds up the others cannot be
// told from outside, but the one that waits in no collective comes first.
std::vector<HungRank> FindHung(const std::map<int32_t, LinkHost::Rank>& ranks,
                               const WatchdogLimits& limits, int64_t now_ms);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_WATCHDOG_H_
