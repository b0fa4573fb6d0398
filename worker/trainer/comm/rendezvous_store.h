// Where ranks that do not know each other yet leave each other notes: a small key-value store, for
// the moment in which a group forms. A directory (FileStore) or a server on the network (TcpStore).
//
// A key is written once. Each attempt at forming a group has its own prefix, so that what an older
// attempt left behind is never read.
//
// Ownership: see each implementation. Thread-safety: one thread at a time per object.
#ifndef NIBBLE_WORKER_TRAINER_COMM_RENDEZVOUS_STORE_H_
#define NIBBLE_WORKER_TRAINER_COMM_RENDEZVOUS_STORE_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble {

using Deadline = std::chrono::steady_clock::time_point;

class RendezvousStore {
 public:
  static constexpr size_t kMaxKeyBytes = 256;
  static constexpr size_t kMaxValueBytes = size_t{1} << 18;

  virtual ~RendezvousStore() = default;

  // ALREADY_EXISTS if the key is there, INVALID_ARGUMENT beyond the limits.
  virtual absl::Status Set(std::string_view key, std::string_view value, Deadline deadline) = 0;
  // Waits for the key; DEADLINE_EXCEEDED if it does not come. A deadline in the past looks once.
  virtual absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) = 0;
  // Every rank has read what it needs: takes back what this object has set, where that would stay.
  virtual void Done() {}
};

// INVALID_ARGUMENT with the size and the bound.
absl::Status CheckRendezvousSizes(std::string_view key, std::string_view value);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_RENDEZVOUS_STORE_H_
