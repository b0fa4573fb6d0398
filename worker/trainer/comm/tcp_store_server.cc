#include "worker/trainer/comm/tcp_store_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/trainer/comm/rendezvous_store.h"
#include "worker/trainer/comm/signal_block.h"
#include "worker/trainer/comm/tcp_store_frame.h"

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kNever = Clock::time_point::max();
constexpr uint64_t kMaxWaitMs = uint64_t{24} * 3600 * 1000;
// A process out of descriptors cannot accept: it asks again at this pace instead of spinning.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

// One client. A request is read, answered, and its answer written before the next is read.
struct Connection {
  int fd = -1;
  std::string in;                     // of the request being read
  std::string out;                    // still to be written
  std::optional<std::string> parked;  // a Get that waits for this key
  Clock::time_point deadline;         // of the frame, of the answer, or of the wait
  bool closing = false;
};

absl::StatusOr<int> Listen(const tcp_store::HostPort& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    return absl::UnavailableError(
        absl::StrCat("rendezvous host ", address.host, ": ", gai_strerror(error)));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  int last = 0;
  for (const addrinfo* it = found; it != nullptr; it = it->ai_next) {
    const int fd = socket(it->ai_family, it->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
      last = errno;
      continue;
    }
    const int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, it->ai_addr, it->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
    last = errno;
    (void)close(fd);
  }
  return absl::UnavailableError(absl::StrCat("rendezvous cannot listen on ", address.host, ":",
                                             address.port, ": ", strerror(last)));
}

uint16_t PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  (void)getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace

class TcpStoreServer::Loop {
 public:
  Loop(int listen_fd, int stop_fd, Limits limits)
      : listen_fd_(listen_fd), stop_fd_(stop_fd), limits_(limits) {}
  ~Loop() {
    for (Connection& connection : connections_) (void)close(connection.fd);
    (void)close(listen_fd_);
  }

  void Run() {
    std::vector<pollfd> polls;
    while (true) {
      const bool accepting =
          connections_.size() < limits_.connections && Clock::now() >= accept_again_;
      polls.assign({{stop_fd_, POLLIN, 0}, {accepting ? listen_fd_ : -1, POLLIN, 0}});
      for (const Connection& connection : connections_) {
        // A parked client has nothing to say; that it hangs up is reported in any case.
        const short events = !connection.out.empty() ? POLLOUT
                             : connection.parked     ? POLLRDHUP
                                                     : POLLIN;
        polls.push_back({connection.fd, events, 0});
      }
      (void)poll(polls.data(), polls.size(), Timeout());
      if (polls[0].revents != 0) return;
      size_t i = 2;
      for (Connection& connection : connections_) Serve(connection, polls[i++].revents);
      connections_.remove_if([](const Connection& connection) {
        if (connection.closing) (void)close(connection.fd);
        return connection.closing;
      });
      if (polls[1].revents != 0) Accept();
    }
  }

 private:
  int Timeout() const {
    Clock::time_point next = accept_again_ > Clock::now() ? accept_again_ : kNever;
    for (const Connection& connection : connections_) next = std::min(next, connection.deadline);
    if (next == kNever) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
  }

  void Accept() {
    while (connections_.size() < limits_.connections) {
      const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          accept_again_ = Clock::now() + kAcceptPause;
        }
        return;
      }
      Connection& connection = connections_.emplace_back();
      connection.fd = fd;
      connection.deadline = Clock::now() + limits_.frame_time;
    }
  }

  void Serve(Connection& connection, short events) {
    if (connection.parked) {
      if ((events & (POLLERR | POLLHUP | POLLRDHUP)) != 0) {
        connection.closing = true;
      } else if (Clock::now() >= connection.deadline) {
        Answer(connection, absl::DeadlineExceededError("the key did not come"), "");
      }
    } else if (Clock::now() >= connection.deadline) {
      connection.closing = true;
    } else if (!connection.out.empty()) {
      if (events != 0) Write(connection);
    } else if (events != 0) {
      Read(connection);
    }
  }

  void Read(Connection& connection) {
    while (!connection.closing && connection.out.empty() && !connection.parked) {
      size_t want = tcp_store::kRequestHead;
      absl::StatusOr<tcp_store::RequestHead> head = absl::UnknownError("");
      if (connection.in.size() >= want) {
        head = tcp_store::ParseRequest(connection.in.substr(0, tcp_store::kRequestHead));
        if (!head.ok()) {
          connection.closing = true;
          return;
        }
        want += head->key_bytes + head->value_bytes;
        if (connection.in.size() == want) {
          Handle(connection, *head);
          continue;
        }
      }
      const size_t had = connection.in.size();
      connection.in.resize(want);
      const ssize_t got = recv(connection.fd, connection.in.data() + had, want - had, 0);
      connection.in.resize(had + std::max<ssize_t>(got, 0));
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got <= 0) connection.closing = true;
      // A member may be silent between its requests, but not within one.
      if (had == 0) connection.deadline = Clock::now() + limits_.frame_time;
    }
  }

  void Handle(Connection& connection, const tcp_store::RequestHead& head) {
    std::string key = connection.in.substr(tcp_store::kRequestHead, head.key_bytes);
    std::string value = connection.in.substr(tcp_store::kRequestHead + head.key_bytes);
    connection.in.clear();
    if (head.operation == tcp_store::Operation::kSet) {
      Answer(connection, Set(key, std::move(value)), "");
      return;
    }
    if (const auto it = values_.find(key); it != values_.end()) {
      Answer(connection, absl::OkStatus(), it->second);
      return;
    }
    connection.parked = std::move(key);
    connection.deadline =
        Clock::now() + std::chrono::milliseconds(std::min(head.wait_ms, kMaxWaitMs));
  }

  absl::Status Set(const std::string& key, std::string value) {
    if (values_.contains(key)) return absl::AlreadyExistsError("the key is already there");
    const size_t bytes = key.size() + value.size();
    if (values_.size() >= limits_.keys || bytes > limits_.bytes - bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat("the rendezvous is full: ", values_.size(),
                                                       " of ", limits_.keys, " keys, ", bytes_,
                                                       " of ", limits_.bytes, " bytes"));
    }
    bytes_ += bytes;
    const std::string& stored = values_.emplace(key, std::move(value)).first->second;
    for (Connection& other : connections_) {
      if (other.parked == key && !other.closing) Answer(other, absl::OkStatus(), stored);
    }
    return absl::OkStatus();
  }

  void Answer(Connection& connection, const absl::Status& status, std::string_view value) {
    connection.parked.reset();
    connection.out = tcp_store::EncodeResponse(status, value);
    connection.deadline = Clock::now() + limits_.frame_time;
    Write(connection);
  }

  void Write(Connection& connection) {
    while (!connection.out.empty()) {
      const ssize_t sent =
          send(connection.fd, connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0) {
        connection.closing = true;
        return;
      }
      connection.out.erase(0, sent);
    }
    connection.deadline = kNever;
  }

  const int listen_fd_;
  const int stop_fd_;
  const Limits limits_;
  std::list<Connection> connections_;
  std::unordered_map<std::string, std::string> values_;
  size_t bytes_ = 0;
  Clock::time_point accept_again_ = Clock::time_point::min();
};

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Start(const std::string& address,
                                                                      Limits limits) {
  const absl::StatusOr<tcp_store::HostPort> parsed = tcp_store::ParseHostPort(address);
  if (!parsed.ok()) return parsed.status();
  const absl::StatusOr<int> listen_fd = Listen(*parsed);
  if (!listen_fd.ok()) return listen_fd.status();
  const uint16_t port = PortOf(*listen_fd);
  const int stop_fd = eventfd(0, EFD_CLOEXEC);
  if (stop_fd < 0) {
    const int error = errno;
    (void)close(*listen_fd);
    return absl::ErrnoToStatus(error, "rendezvous server's eventfd");
  }
  auto loop = std::make_unique<Loop>(*listen_fd, stop_fd, limits);
  return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(loop), stop_fd, port));
}

TcpStoreServer::TcpStoreServer(std::unique_ptr<Loop> loop, int stop_fd, uint16_t port)
    : loop_(std::move(loop)), stop_fd_(stop_fd), port_(port) {
  const BlockAllSignals block;
  thread_ = std::thread([this] { loop_->Run(); });
}

TcpStoreServer::~TcpStoreServer() {
  const uint64_t one = 1;
  (void)!write(stop_fd_, &one, sizeof(one));
  thread_.join();
  (void)close(stop_fd_);
}

}  // namespace nibble
