#include "common/metrics/deadline_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace nibble {
namespace {

// How late a stop may be heard of.
constexpr int64_t kLookMs = 50;

}  // namespace

DeadlineStream::DeadlineStream(int socket, const Limits& limits, const std::atomic<bool>& stopping)
    : socket_(socket),
      limits_(limits),
      stopping_(stopping),
      read_by_(Clock::now() + limits.request) {}

bool DeadlineStream::Await(short events, Clock::time_point deadline) const {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0 || stopping_) return false;
    pollfd wait = {.fd = socket_, .events = events};
    const int ready = poll(&wait, 1, static_cast<int>(std::min(left, kLookMs)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool DeadlineStream::is_readable() const { return Await(POLLIN, read_by_); }

bool DeadlineStream::is_writable() const { return Await(POLLOUT, Clock::now() + limits_.response); }

ssize_t DeadlineStream::read(char* out, size_t size) {
  const size_t most = std::min(size, limits_.request_bytes - read_bytes_);
  if (most == 0 || !Await(POLLIN, read_by_)) return -1;
  const ssize_t got = recv(socket_, out, most, MSG_DONTWAIT);
  if (got > 0) read_bytes_ += static_cast<size_t>(got);
  return got;
}

ssize_t DeadlineStream::write(const char* bytes, size_t size) {
  if (write_by_ == Clock::time_point()) write_by_ = Clock::now() + limits_.response;
  if (!Await(POLLOUT, write_by_)) return -1;
  return send(socket_, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// Nobody asks who it is.
void DeadlineStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}
void DeadlineStream::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

}  // namespace nibble
