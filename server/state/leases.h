// Which workers were heard from, and when: volatile on purpose. A heartbeat every second from every
// worker is no history, so it is never journalled; what is journalled is that a lease ran out
// (WorkerLost) or that a worker is there (WorkerRegistered). After a restart of the coordinator
// every worker that was present counts as just heard from, so that nothing is lost for the
// coordinator's own absence.
//
// Times are given, on whichever clock the caller keeps to; one that does not go back.
// Ownership: a value. Thread-safety: none of its own.
#ifndef NIBBLE_SERVER_STATE_LEASES_H_
#define NIBBLE_SERVER_STATE_LEASES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/state/state.h"

namespace nibble {

class Leases {
 public:
  struct Lease {
    std::string worker;
    int64_t incarnation = 0;
    int64_t heard_ms = 0;  // when
  };

  explicit Leases(int64_t lease_ms) : lease_ms_(lease_ms) {}

  // All that are present in the state were heard from now; others are unknown.
  void Restart(const State& state, int64_t now_ms);
  // A heartbeat. That of an older incarnation than was heard counts for nothing.
  void Hear(const std::string& worker, int64_t incarnation, int64_t now_ms);
  void Drop(const std::string& worker);

  // Not heard from for longer than a lease, longest first.
  std::vector<Lease> Expired(int64_t now_ms) const;
  // When the next lease runs out unless it is heard from; unset: there is none.
  std::optional<int64_t> NextExpiry() const;
  // Unset: never.
  std::optional<int64_t> LastHeard(const std::string& worker) const;

 private:
  int64_t lease_ms_;
  std::map<std::string, Lease> leases_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_LEASES_H_
