// How the ranks of a group find each other: opens the store that a text names, and sees that every
// rank has come and means the same group before anything is connected.
//
// Ownership: a Rendezvous owns its client and, on rank 0 of a "tcp:" one, the server. Keep rank 0's
// alive until every rank is done with it. Thread-safety: one thread at a time.
#ifndef NIBBLE_WORKER_TRAINER_COMM_RENDEZVOUS_H_
#define NIBBLE_WORKER_TRAINER_COMM_RENDEZVOUS_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/comm/rendezvous_store.h"
#include "worker/trainer/comm/tcp_store_server.h"

namespace nibble {

class Rendezvous {
 public:
  // A directory that every rank sees, the address at which rank 0 serves, or one at which whoever
  // started the ranks does, for as long as they run.
  static constexpr char kFilePrefix[] = "file:";
  static constexpr char kTcpPrefix[] = "tcp:";
  static constexpr char kServedPrefix[] = "served:";

  // address: "file:/directory", "tcp:host:port" or "served:host:port". INVALID_ARGUMENT for
  // anything else.
  static absl::StatusOr<Rendezvous> Open(const std::string& address, int rank, Deadline deadline);

  RendezvousStore& store() { return *store_; }

  // Notes this rank's arrival under `attempt` and waits for the others. DEADLINE_EXCEEDED names the
  // ranks that have not come, FAILED_PRECONDITION one that came with another world size,
  // ALREADY_EXISTS says that this rank of this attempt is there already.
  absl::Status Meet(const std::string& attempt, int rank, int world, Deadline deadline);

 private:
  Rendezvous(std::unique_ptr<TcpStoreServer> server, std::unique_ptr<RendezvousStore> store)
      : server_(std::move(server)), store_(std::move(store)) {}

  std::unique_ptr<TcpStoreServer> server_;
  std::unique_ptr<RendezvousStore> store_;
};

// "rank 2", "ranks 1, 3", "ranks 1, 2, 3 and 4 more": at most three by name.
std::string NameRanks(const std::vector<int>& ranks);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_RENDEZVOUS_H_
