#include "server/state/leases.h"

#include <algorithm>

namespace nibble {

void Leases::Restart(const State& state, int64_t now_ms) {
  leases_.clear();
  for (const auto& [name, worker] : state.tables().workers) {
    if (worker->present()) Hear(name, worker->identity().incarnation(), now_ms);
  }
}

void Leases::Hear(const std::string& worker, int64_t incarnation, int64_t now_ms) {
  Lease& lease = leases_[worker];
  if (incarnation < lease.incarnation) return;
  lease = {worker, incarnation, now_ms};
}

void Leases::Drop(const std::string& worker) { leases_.erase(worker); }

std::vector<Leases::Lease> Leases::Expired(int64_t now_ms) const {
  std::vector<Lease> expired;
  for (const auto& [name, lease] : leases_) {
    if (now_ms - lease.heard_ms > lease_ms_) expired.push_back(lease);
  }
  std::stable_sort(expired.begin(), expired.end(),
                   [](const Lease& a, const Lease& b) { return a.heard_ms < b.heard_ms; });
  return expired;
}

std::optional<int64_t> Leases::NextExpiry() const {
  std::optional<int64_t> next;
  for (const auto& [name, lease] : leases_) {
    const int64_t expiry = lease.heard_ms + lease_ms_ + 1;
    if (!next || expiry < *next) next = expiry;
  }
  return next;
}

std::optional<int64_t> Leases::LastHeard(const std::string& worker) const {
  const auto found = leases_.find(worker);
  if (found == leases_.end()) return std::nullopt;
  return found->second.heard_ms;
}

}  // namespace nibble
