// The server side of the TCP rendezvous: an in-memory key-value store for the minute in which the
// ranks of a group find each other.
//
// Anyone who reaches the port may connect, so everything is bounded: connections, keys, bytes, and
// the time in which a connection must send a whole frame. A connection that sends anything but
// strict frames (tcp_store_frame.h) is closed and the others never notice. It holds addresses, not
// secrets, and speaks without encryption: bind it to loopback or to a network that is trusted.
//
// Ownership: owns its socket and one thread; the destructor stops it and drops every connection.
// Thread-safety: Start and the accessors from any thread.
#ifndef NIBBLE_WORKER_TRAINER_COMM_TCP_STORE_SERVER_H_
#define NIBBLE_WORKER_TRAINER_COMM_TCP_STORE_SERVER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace nibble {

class TcpStoreServer {
 public:
  struct Limits {
    size_t connections = 4096;
    size_t keys = 65536;
    size_t bytes = size_t{256} << 20;  // keys and values together
    std::chrono::milliseconds frame_time = std::chrono::seconds(5);
  };

  // `address` is "host:port"; port 0 picks a free one. UNAVAILABLE if it cannot be bound.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Start(const std::string& address,
                                                               Limits limits);
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Start(const std::string& address) {
    return Start(address, Limits());
  }
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  uint16_t port() const { return port_; }

 private:
  class Loop;
  TcpStoreServer(std::unique_ptr<Loop> loop, int stop_fd, uint16_t port);

  std::unique_ptr<Loop> loop_;  // used by the thread alone once it runs
  const int stop_fd_;           // an eventfd, written once to stop
  const uint16_t port_;
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_TCP_STORE_SERVER_H_
