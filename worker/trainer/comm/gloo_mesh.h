// The connections between the ranks of a group and the messages over them. Hides Gloo completely:
// its exceptions do not leave this unit.
//
// Connections are plain TCP without encryption or authentication, for loopback or a trusted
// network. A stranger that connects to a port while the group forms makes it fail: each peer's rank
// and attempt are checked before any data is accepted.
//
// Ownership: owns the sockets and two threads. Destroying a mesh sends a farewell to its peers, so
// that they can distinguish a rank that has finished from one that was lost. Thread-safety: one
// thread at a time.
#ifndef NIBBLE_WORKER_TRAINER_COMM_GLOO_MESH_H_
#define NIBBLE_WORKER_TRAINER_COMM_GLOO_MESH_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/comm/rendezvous.h"

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
    // As GlooOptions; asked at the beginning of an exchange and at each tick.
    std::function<bool()> gives_up = nullptr;
  };

  // Call after Rendezvous::Meet(). Returns when all ranks are connected and have identified each
  // other; no rank needs the store afterwards.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(const Options& options, TcpStore& store,
                                                           Deadline deadline);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  static constexpr uint64_t kFirstTag = 16;

  // A stream of messages with each peer, divided into rows; an empty span is not sent. Both sides
  // of a pair must use the same size for each row.
  struct Rows {
    int64_t count;
    int64_t window;  // rows in flight at once
    absl::FunctionRef<std::span<const std::byte>(int peer, int64_t row)> send;
    absl::FunctionRef<std::span<std::byte>(int peer, int64_t row)> receive;
    // Called in order, when every message of this row has arrived; then row + window may use the
    // row's memory.
    absl::FunctionRef<void(int64_t row)> arrived;
  };

  // `tag`, from kFirstTag, is the same on every rank of one exchange and differs between exchanges:
  // messages with another tag are never received by this one.
  // UNAVAILABLE names the peer that is lost or has left, DEADLINE_EXCEEDED the silent peers, also
  // where this rank was asked to give up. After a failure all connections are closed.
  absl::Status Exchange(uint64_t tag, const Rows& rows);

 private:
  struct Gloo;  // the library's objects, and the state of each peer
  struct Farewell;

  GlooMesh(const Options& options, std::unique_ptr<Gloo> gloo);
  absl::Status Introduce(Deadline deadline);
  absl::Status Run(uint64_t tag, const Rows& rows, std::chrono::milliseconds timeout);
  bool Lost(int peer);
  const Farewell& ReceiveFarewell(int peer);
  // `peer`: with which messages were exchanged; -1: none yet. `why`: ends the message.
  absl::Status FailAsLate(Transfers& transfers, int peer, const std::string& why);
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
