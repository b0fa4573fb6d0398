#include "worker/trainer/comm/tcp_store.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "worker/trainer/comm/tcp_store_frame.h"

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kTryAgain = std::chrono::milliseconds(10);
// The server does not wait longer.
constexpr auto kMaxWait = std::chrono::hours(24);
// How long beyond a wait the answer "did not come" may take on its way.
constexpr auto kAnswerTime = std::chrono::seconds(1);

int64_t MillisecondsLeft(Deadline deadline) {
  const Deadline now = Clock::now();
  if (deadline <= now) return 0;
  return std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
}

// 0 when ready, ETIMEDOUT, or another errno.
int WaitFor(int fd, short events, Deadline deadline) {
  while (true) {
    const int64_t left = MillisecondsLeft(deadline);
    pollfd one = {fd, events, 0};
    const int ready = poll(&one, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return errno;
    if (left == 0) return ETIMEDOUT;
  }
}

// A connected descriptor, or the errno of the last address tried, negated.
int ConnectOnce(const addrinfo* found, Deadline deadline) {
  int error = ECONNREFUSED;
  for (; found != nullptr; found = found->ai_next) {
    const int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
      error = errno;
      continue;
    }
    error = connect(fd, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) error = WaitFor(fd, POLLOUT, deadline);
    socklen_t size = sizeof(error);
    if (error == 0) (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0) {
      const int on = 1;
      (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return fd;
    }
    (void)close(fd);
  }
  return -error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpStore>> TcpStore::Connect(const std::string& address,
                                                            Deadline deadline) {
  const absl::StatusOr<tcp_store::HostPort> parsed = tcp_store::ParseHostPort(address);
  if (!parsed.ok()) return parsed.status();
  const std::string port = std::to_string(parsed->port);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  while (true) {
    std::string why;
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(parsed->host.c_str(), port.c_str(), &hints, &found);
        error != 0) {
      why = gai_strerror(error);
    } else {
      const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
      const int fd = ConnectOnce(found, deadline);
      if (fd >= 0) return std::unique_ptr<TcpStore>(new TcpStore(address, fd));
      why = strerror(-fd);
    }
    if (Clock::now() + kTryAgain >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("no rendezvous server at ", address, ": ", why));
    }
    std::this_thread::sleep_for(kTryAgain);
  }
}

TcpStore::~TcpStore() {
  if (fd_ >= 0) (void)close(fd_);
}

absl::Status TcpStore::Move(bool out, char* data, size_t bytes, Deadline deadline) {
  while (bytes > 0) {
    const ssize_t moved = out ? send(fd_, data, bytes, MSG_NOSIGNAL) : recv(fd_, data, bytes, 0);
    if (moved > 0) {
      data += moved;
      bytes -= moved;
      continue;
    }
    int error = moved == 0 ? ECONNRESET : errno;
    if (error == EINTR) continue;
    if (error == EAGAIN) error = WaitFor(fd_, out ? POLLOUT : POLLIN, deadline);
    if (error != 0) {
      return absl::UnavailableError(
          absl::StrCat("rendezvous server at ", address_, ": ",
                       error == ETIMEDOUT ? "no answer" : strerror(error)));
    }
  }
  return absl::OkStatus();
}

absl::Status TcpStore::Exchange(std::string_view request, Deadline deadline, absl::StatusCode* code,
                                std::string* body) {
  std::string bytes(request);
  absl::Status status = Move(true, bytes.data(), bytes.size(), deadline);
  bytes.assign(tcp_store::kResponseHead, '\0');
  if (status.ok()) status = Move(false, bytes.data(), bytes.size(), deadline);
  if (!status.ok()) return status;
  const absl::StatusOr<tcp_store::ResponseHead> head = tcp_store::ParseResponse(bytes);
  if (!head.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "what listens at ", address_, " is no rendezvous server: ", head.status().message()));
  }
  *code = head->code;
  body->assign(head->value_bytes, '\0');
  return Move(false, body->data(), body->size(), deadline);
}

absl::StatusOr<std::string> TcpStore::Ask(std::string_view request, Deadline deadline) {
  if (fd_ < 0) {
    return absl::UnavailableError(
        absl::StrCat("rendezvous server at ", address_, ": the connection has failed before"));
  }
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string body;
  if (const absl::Status status = Exchange(request, deadline, &code, &body); !status.ok()) {
    // The stream may stand in the middle of a frame.
    (void)close(fd_);
    fd_ = -1;
    return status;
  }
  if (code != absl::StatusCode::kOk) return absl::Status(code, body);
  return body;
}

absl::Status TcpStore::Set(std::string_view key, std::string_view value, Deadline deadline) {
  if (const absl::Status status = CheckRendezvousSizes(key, value); !status.ok()) return status;
  const absl::Status status =
      Ask(tcp_store::EncodeRequest(tcp_store::Operation::kSet, key, value, 0), deadline).status();
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("setting rendezvous key ", std::string(key),
                                                  " at ", address_, ": ", status.message()));
}

absl::StatusOr<std::string> TcpStore::Get(std::string_view key, Deadline deadline) {
  if (const absl::Status status = CheckRendezvousSizes(key, ""); !status.ok()) return status;
  const Deadline now = Clock::now();
  deadline = std::clamp(deadline, now, now + kMaxWait);
  absl::StatusOr<std::string> value =
      Ask(tcp_store::EncodeRequest(tcp_store::Operation::kGet, key, "", MillisecondsLeft(deadline)),
          deadline + kAnswerTime);
  if (value.ok()) return value;
  return absl::Status(value.status().code(),
                      absl::StrCat("rendezvous key ", std::string(key), " at ", address_, ": ",
                                   value.status().message()));
}

}  // namespace nibble
