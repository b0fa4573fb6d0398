// A TCP connection, with TLS or without, whose every step ends at one deadline, or when it is
// cancelled.
//
// Ownership: owns its socket. Thread-safety: none.
#ifndef NIBBLE_SERVER_NOTIFY_TIMED_STREAM_H_
#define NIBBLE_SERVER_NOTIFY_TIMED_STREAM_H_

#include <openssl/ssl.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/notify/allow_list.h"

namespace nibble {

class TimedStream {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `cancel_fd` is readable once the stream is cancelled.
  TimedStream(Time deadline, int cancel_fd) : deadline_(deadline), cancel_fd_(cancel_fd) {}
  ~TimedStream();
  TimedStream(const TimedStream&) = delete;
  TimedStream& operator=(const TimedStream&) = delete;

  // All of these: DeadlineExceeded, Cancelled, or Unavailable.
  absl::Status Connect(const IpAddress& address, int port);
  // Verifies the certificate against the system's roots and `host`.
  absl::Status StartTls(const std::string& host);
  absl::Status Write(std::string_view bytes);
  // At least one byte; 0: the peer has closed.
  absl::StatusOr<size_t> Read(char* buffer, size_t size);

 private:
  // Waits until the socket is ready for POLLIN or POLLOUT.
  absl::Status Await(short events) const;
  // What an operation of TLS that returned `result` waits for, or why it failed.
  absl::Status AwaitTls(int result, const char* what) const;

  struct FreeContext {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  struct FreeTls {
    void operator()(SSL* tls) const { SSL_free(tls); }
  };

  const Time deadline_;
  const int cancel_fd_;
  int fd_ = -1;
  std::unique_ptr<SSL_CTX, FreeContext> context_;
  std::unique_ptr<SSL, FreeTls> tls_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_TIMED_STREAM_H_
