// The connections between the ranks of a group, and the moving of messages over them: everything
// that touches Gloo is behind this header. Gloo throws; nothing that is thrown leaves this unit.
//
// Connections are plain TCP without encryption or authentication, for loopback or a network that is
// trusted. While the group forms, a stranger that connects to one of its ports makes it fail; that
// a peer is the rank it should be, of this attempt, is checked before any data is taken.
//
// Ownership: owns the sockets and two threads. A mesh that is destroyed in good order tells its
// peers, so that they can tell a rank that has finished from one that was lost. Thread-safety: one
// thread at a time.
#ifndef NIBBLE_WORKER_TRAINER_COMM_GLOO_MESH_H_
#define NIBBLE_WORKER_TRAINER_COMM_GLOO_MESH_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/comm/rendezvous_store.h"

namespace nibble {

class Transfers;

class GlooMesh {
 public:
  struct Options {
    int rank = 0;
    int world = 1;
    std::string attempt;
    // The address to bind, or the interface if it is not empty.
    std::string bind_address;
    std::string interface;
    // An exchange fails when nothing has arrived for this long, give or take a tick of 50 ms.
    std::chrono::milliseconds timeout;
  };

  // Every rank has arrived at the store (Rendezvous::Meet). Returns when all are connected and
  // known to each other, after which no rank needs the store.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(const Options& options,
                                                           RendezvousStore& store,
                                                           Deadline deadline);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  static constexpr uint64_t kFirstTag = 16;

  // A stream of messages with each peer, cut into rows; an empty span is no message. All messages
  // of a pair must have the same sizes on both sides, row by row.
  struct Rows {
    int64_t count;
    int64_t window;  // rows under way at once
    absl::FunctionRef<std::span<const std::byte>(int peer, int64_t row)> send;
    absl::FunctionRef<std::span<std::byte>(int peer, int64_t row)> receive;
    // Every message of this row is there. Called in order; then the row's memory may be used again
    // by row + window.
    absl::FunctionRef<void(int64_t row)> arrived;
  };

  // `tag`, from kFirstTag, is the same on every rank of one exchange and differs between exchanges:
  // messages of another tag are never taken for this one's.
  // UNAVAILABLE names the peer that is lost or has left, DEADLINE_EXCEEDED those that do not
  // answer. After a failure all connections are closed.
  absl::Status Exchange(uint64_t tag, const Rows& rows);

 private:
  struct Gloo;  // the library's objects, and what is heard of each peer
  struct Farewell;

  GlooMesh(const Options& options, std::unique_ptr<Gloo> gloo);
  absl::Status Introduce(Deadline deadline);
  absl::Status Run(uint64_t tag, const Rows& rows, std::chrono::milliseconds timeout);
  bool Lost(int peer);
  const Farewell& HearFarewell(int peer);
  absl::Status FailAsLate(Transfers& transfers, int peer, std::chrono::milliseconds timeout);
  absl::Status FailAsLost(int peer, const std::string& what);
  void SendFarewells(const Farewell& farewell);
  void Disconnect();

  const Options options_;
  std::unique_ptr<Gloo> gloo_;
  uint64_t exchanges_ = 0;
  bool open_ = true;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_GLOO_MESH_H_
