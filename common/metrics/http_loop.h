// The connections of a small HTTP server, one request each, on one thread: a peer that sends half a
// request or reads half a response occupies a connection and no thread, so it delays no other.
// Complete requests are answered on a few threads of their own.
//
// Bounds: the bytes and the time of a request, the time of a response, the number of connections
// and of responses being written. A new connection is always accepted: at the bound, the oldest one
// that waits for its peer is closed.
//
// Ownership: owns the listening socket, its connections and threads. Thread-safety: `answer` is
// called from several threads until the loop is destroyed.
#ifndef NIBBLE_COMMON_METRICS_HTTP_LOOP_H_
#define NIBBLE_COMMON_METRICS_HTTP_LOOP_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace nibble {

class HttpLoop {
 public:
  struct Limits {
    std::chrono::milliseconds request{2000};     // from connecting until the request is read
    std::chrono::milliseconds response{10'000};  // from its first byte until it is written
    size_t request_bytes = 32 << 10;             // of the head
    size_t body_bytes = 0;     // of a body that is waited for; a longer one is not read
    size_t connections = 256;  // at once
    size_t responses = 32;     // being written at once
  };
  // Makes the whole response from a request: its head, or the first request_bytes of that, and
  // its body if the head announces one of up to body_bytes, otherwise what has arrived of it.
  using Answer = std::function<std::string(const std::string& request)>;

  // Takes ownership of the listening socket. `threads`: that call `answer`. The errors of
  // ErrnoError: ResourceExhausted if no descriptor is left.
  static absl::StatusOr<std::unique_ptr<HttpLoop>> Start(int listener, const Limits& limits,
                                                         int threads, Answer answer);
  // Closes every connection, and waits for running calls of `answer`.
  ~HttpLoop();
  HttpLoop(const HttpLoop&) = delete;
  HttpLoop& operator=(const HttpLoop&) = delete;

 private:
  struct Parts;
  explicit HttpLoop(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_HTTP_LOOP_H_
