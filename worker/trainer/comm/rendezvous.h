// Rendezvous: how the ranks of a group find each other. A small key-value store, in a directory
// (FileStore) or on a server (TcpStore), and on top of it Rendezvous, which opens the store that an
// address names and waits until every rank has arrived.
//
// A key is written once. Each attempt at forming a group has its own key prefix, so that the keys
// of an older attempt are never read.
//
// Ownership: a TcpStore owns its connection, a FileStore nothing but a list of its files. A
// Rendezvous owns its store and, on rank 0 with a "tcp:" address, the server: keep rank 0's until
// every rank is done with it. Thread-safety: one thread at a time per object; any number of
// processes per store.
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

class RendezvousStore {
 public:
  static constexpr size_t kMaxKeyBytes = 256;
  static constexpr size_t kMaxValueBytes = size_t{1} << 18;

  virtual ~RendezvousStore() = default;

  // ALREADY_EXISTS if the key exists, INVALID_ARGUMENT beyond the limits.
  virtual absl::Status Set(std::string_view key, std::string_view value, Deadline deadline) = 0;
  // Waits for the key; DEADLINE_EXCEEDED if it is not set. A deadline in the past checks once.
  virtual absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) = 0;
  // Call when every rank has read what it needs: removes this object's keys if they are persistent.
  virtual void Done() {}
};

// INVALID_ARGUMENT with the size and the bound if key or value is too large.
absl::Status CheckRendezvousSizes(std::string_view key, std::string_view value);

// A store in an existing directory that every rank can read and write: one file per key, created
// atomically. Files stay until Done(), so that ranks can still read those of a failed attempt.
class FileStore final : public RendezvousStore {
 public:
  // NOT_FOUND or FAILED_PRECONDITION if `directory` is not a directory.
  static absl::StatusOr<std::unique_ptr<FileStore>> Open(const std::string& directory);

  absl::Status Set(std::string_view key, std::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override;
  void Done() override;

 private:
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {}
  // Maps any key to a plain file name: other characters than letters and digits become hexadecimal.
  std::string PathOf(std::string_view key) const;

  const std::string directory_;
  std::vector<std::string> written_;
};

// The client of a TcpStoreServer.
class TcpStore final : public RendezvousStore {
 public:
  // Retries until `deadline`, since the server may start later than its clients; then
  // DEADLINE_EXCEEDED with the last error.
  static absl::StatusOr<std::unique_ptr<TcpStore>> Connect(const std::string& address,
                                                           Deadline deadline);
  ~TcpStore() override;
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  // UNAVAILABLE if the server is gone or does not speak the protocol; the object stays unusable.
  absl::Status Set(std::string_view key, std::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override;

 private:
  TcpStore(std::string address, int fd) : address_(std::move(address)), fd_(fd) {}
  absl::StatusOr<std::string> Ask(std::string_view request, Deadline deadline);
  absl::Status Exchange(std::string_view request, Deadline deadline, absl::StatusCode* code,
                        std::string* body);
  absl::Status Move(bool out, char* data, size_t bytes, Deadline deadline);

  const std::string address_;
  int fd_;
};

// Opens a store and checks that every rank has arrived, with the same world size, before any
// connection between ranks is made.
class Rendezvous {
 public:
  // A directory shared by all ranks, the address at which rank 0 runs the server, or one at which
  // the launcher of the ranks runs it as long as they live.
  static constexpr char kFilePrefix[] = "file:";
  static constexpr char kTcpPrefix[] = "tcp:";
  static constexpr char kServedPrefix[] = "served:";

  // address: "file:/directory", "tcp:host:port" or "served:host:port". INVALID_ARGUMENT for
  // anything else.
  static absl::StatusOr<Rendezvous> Open(const std::string& address, int rank, Deadline deadline);

  RendezvousStore& store() { return *store_; }

  // Records this rank's arrival under `attempt` and waits for the others. DEADLINE_EXCEEDED names
  // the ranks that have not arrived, FAILED_PRECONDITION one with another world size;
  // ALREADY_EXISTS if this rank of this attempt has arrived before.
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
