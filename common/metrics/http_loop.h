// The connections of a small HTTP server, one request each, on one thread: a peer that sends half a
// request or reads half a response costs a place and no thread, so that it delays nobody. Complete
// requests are answered on a few threads of their own.
//
// Bounded: requests in bytes and in time, responses in time, connections and responses under way in
// number. The newest connection always gets a place: the oldest that waits for its peer is closed
// for it.
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
    std::chrono::milliseconds request{2000};     // from the connection until its request is read
    std::chrono::milliseconds response{10'000};  // from its first byte until it is written
    size_t request_bytes = 32 << 10;
    size_t connections = 256;  // at once
    size_t responses = 32;     // being written at once
  };
  // From the head of a request, or its first request_bytes, to all bytes of the response.
  using Answer = std::function<std::string(const std::string& head)>;

  // Takes the socket, which listens. `threads`: of `answer`. Unavailable without a descriptor left.
  static absl::StatusOr<std::unique_ptr<HttpLoop>> Start(int listener, const Limits& limits,
                                                         int threads, Answer answer);
  // Cuts every connection, and waits for answers that are being made.
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
