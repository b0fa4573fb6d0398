// The server of the TCP rendezvous, and the frames of its protocol, which TcpStore shares. Both
// sides are strict: a frame that does not parse ends the connection. All integers are
// little-endian.
//
// Request, 20 bytes then key and value:
//   u32 magic "NBRV" | u8 version | u8 operation | u16 key bytes | u32 value bytes | u64 wait, ms
// Response, 12 bytes then the value or, unless the status is ok, a message:
//   u32 magic "NBRV" | u8 version | u8 absl status code | u16 zero | u32 value bytes
//
// Ownership: a server owns its socket and one thread; the destructor stops it and closes every
// connection. Thread-safety: the server's methods and the pure functions from any thread.
#ifndef NIBBLE_WORKER_TRAINER_COMM_TCP_STORE_SERVER_H_
#define NIBBLE_WORKER_TRAINER_COMM_TCP_STORE_SERVER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble {

namespace tcp_store {

inline constexpr size_t kMaxKeyBytes = 256;
inline constexpr size_t kMaxValueBytes = size_t{1} << 18;

inline constexpr size_t kRequestHead = 20;
inline constexpr size_t kResponseHead = 12;

enum class Operation : uint8_t { kSet = 1, kGet = 2 };

struct RequestHead {
  Operation operation;
  size_t key_bytes;
  size_t value_bytes;
  uint64_t wait_ms;
};

struct ResponseHead {
  absl::StatusCode code;
  size_t value_bytes;
};

std::string EncodeRequest(Operation operation, std::string_view key, std::string_view value,
                          uint64_t wait_ms);
std::string EncodeResponse(const absl::Status& status, std::string_view value);

// head: exactly kRequestHead or kResponseHead bytes. INVALID_ARGUMENT names the bad field; sizes
// are checked against the limits above.
absl::StatusOr<RequestHead> ParseRequest(std::string_view head);
absl::StatusOr<ResponseHead> ParseResponse(std::string_view head);

}  // namespace tcp_store

// An in-memory key-value store for the time in which the ranks of a group find each other.
//
// Anyone who reaches the port may connect, so connections, keys, bytes and the time to send a whole
// frame are bounded, and an invalid frame closes only its own connection. The store has addresses,
// not secrets, and no encryption: bind it to loopback or to a trusted network.
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

  std::unique_ptr<Loop> loop_;  // used only by the thread once it runs
  const int stop_fd_;           // an eventfd, written once to stop
  const uint16_t port_;
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_TCP_STORE_SERVER_H_
