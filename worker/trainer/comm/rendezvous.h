// Rendezvous: how the ranks of a group find each other. TcpStore is the client of a key-value store
// (tcp_store_server.h); Rendezvous connects to the store that an address names and waits until
// every rank has arrived.
//
// A key is written once. Each attempt at forming a group has its own key prefix, so that the keys
// of an older attempt are never read.
//
// Ownership: a TcpStore owns its connection. A Rendezvous owns its store and, on rank 0 with a
// "tcp:" address, the server: keep rank 0's until every rank is done with it. Thread-safety: one
// thread at a time per object; any number of processes per server.
#ifndef NIBBLE_WORKER_TRAINER_COMM_RENDEZVOUS_H_
#define NIBBLE_WORKER_TRAINER_COMM_RENDEZVOUS_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/comm/tcp_store_server.h"

namespace nibble {

using Deadline = std::chrono::steady_clock::time_point;

// INVALID_ARGUMENT with the size and the bound if key or value is too large.
absl::Status CheckRendezvousSizes(std::string_view key, std::string_view value);

// The client of a TcpStoreServer.
class TcpStore {
 public:
  // Retries until `deadline`, since the server may start later than its clients; then
  // DEADLINE_EXCEEDED with the last error.
  static absl::StatusOr<std::unique_ptr<TcpStore>> Connect(const std::string& address,
                                                           Deadline deadline);
  ~TcpStore();
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  // Both return UNAVAILABLE if the server has ended or does not speak the protocol; the object
  // stays unusable. INVALID_ARGUMENT beyond the size limits.
  //
  // ALREADY_EXISTS if the key exists.
  absl::Status Set(std::string_view key, std::string_view value, Deadline deadline);
  // Waits for the key; DEADLINE_EXCEEDED if it is not set. A deadline in the past checks once.
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline);

 private:
  TcpStore(std::string address, int fd) : address_(std::move(address)), fd_(fd) {}
  absl::StatusOr<std::string> Call(std::string_view request, Deadline deadline);
  absl::Status Exchange(std::string_view request, Deadline deadline, absl::StatusCode* code,
                        std::string* body);
  absl::Status Transfer(bool out, char* data, size_t bytes, Deadline deadline);

  const std::string address_;
  int fd_;
};

// Opens a store and checks that every rank has arrived, with the same world size, before any
// connection between ranks is made.
class Rendezvous {
 public:
  // Followed by host:port. "tcp:": rank 0 runs the server there. "served:": the launcher of the
  // ranks runs it for as long as they live.
  static constexpr char kTcpPrefix[] = "tcp:";
  static constexpr char kServedPrefix[] = "served:";

  // INVALID_ARGUMENT for any other address.
  static absl::StatusOr<Rendezvous> Open(const std::string& address, int rank, Deadline deadline);

  TcpStore& store() { return *store_; }

  // Records this rank's arrival under `attempt` and waits for the others. DEADLINE_EXCEEDED names
  // the ranks that have not arrived, FAILED_PRECONDITION one with another world size;
  // ALREADY_EXISTS if this rank of this attempt has arrived before.
  absl::Status Meet(const std::string& attempt, int rank, int world, Deadline deadline);

 private:
  Rendezvous(std::unique_ptr<TcpStoreServer> server, std::unique_ptr<TcpStore> store)
      : server_(std::move(server)), store_(std::move(store)) {}

  std::unique_ptr<TcpStoreServer> server_;
  std::unique_ptr<TcpStore> store_;
};

// "rank 2", "ranks 1, 3", "ranks 1, 2, 3 and 4 more": at most three by name.
std::string NameRanks(const std::vector<int>& ranks);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_RENDEZVOUS_H_
