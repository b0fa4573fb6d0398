// The watchdog of running ranks: ends attempts whose ranks hang, as their heartbeats show, and
// blames a worker for it where that is known.
//
// Thread-safety: all methods.
#ifndef NIBBLE_SERVER_CONTROLLER_WATCHDOG_H_
#define NIBBLE_SERVER_CONTROLLER_WATCHDOG_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/controller/controller_context.h"
#include "server/state/state.h"

namespace nibble {

// Whether ranks of the gang's living attempt have failed on some worker.
bool PeersLost(const State& state, const v1::GangReport& gang);

class Watchdog {
 public:
  explicit Watchdog(const ControllerContext& context) : context_(context) {}

  // Checks an accepted report of a gang. `peers_lost`: PeersLost before the report was decided.
  void Check(const std::string& worker, const v1::GangReport& gang, bool peers_lost);

 private:
  // A rank that makes no step hangs.
  void CheckSteps(const std::string& worker, const v1::GangReport& gang);
  // Ranks that survive the failure of others must end, too.
  void CheckSurvivors(const std::string& worker, const v1::GangReport& gang, bool peers_lost);
  // The longest time a rank may be without a step.
  int64_t LimitMs(int64_t median_step_ms) const;

  const ControllerContext& context_;
  struct PeerLoss {
    int64_t attempt = 0;
    int64_t since_ms = 0;
  };
  Mutex mutex_;
  std::map<std::string, PeerLoss> peer_losses_ ABSL_GUARDED_BY(mutex_);  // by job
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WATCHDOG_H_
