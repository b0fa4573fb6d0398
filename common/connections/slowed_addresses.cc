#include "common/connections/slowed_addresses.h"

#include <algorithm>

namespace nibble {

SlowedAddresses::SlowedAddresses() : SlowedAddresses(Limits()) {}

void SlowedAddresses::Slow(const std::string& address, int64_t now_ms) {
  auto found = slowed_.find(address);
  if (found == slowed_.end() && slowed_.size() >= limits_.addresses) {
    absl::erase_if(slowed_,
                   [now_ms](const auto& entry) { return entry.second.until_ms <= now_ms; });
    if (slowed_.size() >= limits_.addresses) {
      slowed_.erase(
          std::min_element(slowed_.begin(), slowed_.end(), [](const auto& one, const auto& other) {
            return one.second.until_ms < other.second.until_ms;
          }));
    }
  }
  if (found == slowed_.end()) found = slowed_.try_emplace(address).first;
  Slowed& slowed = found->second;
  slowed.until_ms = now_ms + limits_.slow_ms;
  slowed.next_ms = std::max(slowed.next_ms, now_ms + limits_.between_ms);
}

int64_t SlowedAddresses::Take(const std::string& address, int64_t now_ms) {
  const auto found = slowed_.find(address);
  if (found == slowed_.end()) return 0;
  if (found->second.until_ms <= now_ms) {
    slowed_.erase(found);
    return 0;
  }
  const int64_t wait_ms = found->second.next_ms - now_ms;
  if (wait_ms > 0) return wait_ms;
  found->second.next_ms = now_ms + limits_.between_ms;
  return 0;
}

}  // namespace nibble
