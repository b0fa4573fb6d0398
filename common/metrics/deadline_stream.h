// One connection of an HTTP server, bounded: what is read of it in bytes, and reading and writing
// in time as a whole, however slowly its peer goes about it.
//
// Ownership: borrows the socket and the flag. Thread-safety: one thread.
#ifndef NIBBLE_COMMON_METRICS_DEADLINE_STREAM_H_
#define NIBBLE_COMMON_METRICS_DEADLINE_STREAM_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>

#include "httplib.h"

namespace nibble {

class DeadlineStream : public httplib::Stream {
 public:
  struct Limits {
    std::chrono::milliseconds request{2000};     // from now until it is read
    std::chrono::milliseconds response{10'000};  // from the first byte written
    size_t request_bytes = 32 << 10;
  };

  // `stopping` outlives it: once set, nothing more is waited for.
  DeadlineStream(int socket, const Limits& limits, const std::atomic<bool>& stopping);

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* out, size_t size) override;
  ssize_t write(const char* bytes, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;
  // Until the socket is ready or the time is up.
  bool Await(short events, Clock::time_point deadline) const;

  const int socket_;
  const Limits limits_;
  const std::atomic<bool>& stopping_;
  const Clock::time_point read_by_;
  Clock::time_point write_by_{};  // zero: nothing was written
  size_t read_bytes_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_DEADLINE_STREAM_H_
