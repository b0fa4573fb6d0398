// The frames of the TCP rendezvous, strict on both sides: whatever does not parse ends the
// connection. All integers are little-endian.
//
// Request, 20 bytes then key and value:
//   u32 magic "NBRV" | u8 version | u8 operation | u16 key bytes | u32 value bytes | u64 wait, ms
// Response, 12 bytes then the value or, unless the status is ok, a message:
//   u32 magic "NBRV" | u8 version | u8 absl status code | u16 zero | u32 value bytes
//
// Pure. Thread-safety: any thread.
#ifndef NIBBLE_WORKER_TRAINER_COMM_TCP_STORE_FRAME_H_
#define NIBBLE_WORKER_TRAINER_COMM_TCP_STORE_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble::tcp_store {

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

// head: exactly kRequestHead or kResponseHead bytes. INVALID_ARGUMENT says what is wrong; sizes
// that pass are within the limits of RendezvousStore.
absl::StatusOr<RequestHead> ParseRequest(std::string_view head);
absl::StatusOr<ResponseHead> ParseResponse(std::string_view head);

// "host:port", "[v6]:port"; INVALID_ARGUMENT names what is wrong. Port 0 is allowed.
struct HostPort {
  std::string host;
  uint16_t port;
};
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);

}  // namespace nibble::tcp_store

#endif  // NIBBLE_WORKER_TRAINER_COMM_TCP_STORE_FRAME_H_
