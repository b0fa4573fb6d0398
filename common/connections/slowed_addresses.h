// Addresses that may open few connections for a while, because a connection of theirs was ended for
// what it did: otherwise its peer would only connect again, and a handshake costs as much as many
// calls.
//
// Ownership: values. Thread-safety: none. Times are of one monotonic clock.
#ifndef NIBBLE_COMMON_CONNECTIONS_SLOWED_ADDRESSES_H_
#define NIBBLE_COMMON_CONNECTIONS_SLOWED_ADDRESSES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace nibble {

class SlowedAddresses {
 public:
  struct Limits {
    int64_t slow_ms = 60'000;   // after the last connection that was ended
    int64_t between_ms = 250;   // from one new connection to the next
    size_t addresses = 10'000;  // beyond these, the address that is slowed longest is forgotten
  };

  SlowedAddresses();
  explicit SlowedAddresses(const Limits& limits) : limits_(limits) {}

  void Slow(const std::string& address, int64_t now_ms);
  // Milliseconds until the address may open a connection; 0: it may, and this is it.
  int64_t Take(const std::string& address, int64_t now_ms);
  size_t size() const { return slowed_.size(); }

 private:
  struct Slowed {
    int64_t until_ms = 0;
    int64_t next_ms = 0;  // when it may open the next connection
  };

  const Limits limits_;
  absl::flat_hash_map<std::string, Slowed> slowed_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_CONNECTIONS_SLOWED_ADDRESSES_H_
