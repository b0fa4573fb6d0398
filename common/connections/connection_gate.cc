#include "common/connections/connection_gate.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

// Numbers of events: connections count from above these.
constexpr uint64_t kWake = 0;
constexpr uint64_t kFirstListener = 1;
constexpr uint64_t kMaxListeners = 64;
// Time from the end of a connection to the last moment at which its call is known.
constexpr int64_t kCallDelayMs = 1000;
// Without descriptors, connects wait this long.
constexpr int64_t kPauseMs = 100;
constexpr int kBacklog = 4096;
constexpr int kAcceptsAtOnce = 256;

int64_t SteadyNowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// As gRPC names peers, but with [] as it is.
std::string PeerText(const sockaddr_storage& peer) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (peer.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(peer);
    inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size());
    return absl::StrCat("ipv4:", text.data(), ":", ntohs(four.sin_port));
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(peer);
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
    inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, text.data(), text.size());
    return absl::StrCat("ipv4:", text.data(), ":", ntohs(six.sin6_port));
  }
  inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size());
  return absl::StrCat("ipv6:[", text.data(), "]:", ntohs(six.sin6_port));
}

std::string WithoutPort(const std::string& from) { return from.substr(0, from.rfind(':')); }

// -1 with errno.
int ListenOn(const addrinfo& at, int port, int64_t answer_ms) {
  OwnedDescriptor listener(
      socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (listener.get() < 0) return -1;
  const auto set = [&listener](int level, int option, int value) {
    return setsockopt(listener.get(), level, option, &value, sizeof value) == 0;
  };
  sockaddr_storage address = {};
  std::memcpy(&address, at.ai_addr, at.ai_addrlen);
  if (at.ai_family == AF_INET6) {
    auto& six = reinterpret_cast<sockaddr_in6&>(address);
    six.sin6_port = htons(static_cast<uint16_t>(port));
    // The wildcard of IPv6 is that of IPv4, too.
    const bool any = IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr);
    if (!set(IPPROTO_IPV6, IPV6_V6ONLY, any ? 0 : 1)) return -1;
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(static_cast<uint16_t>(port));
  }
  // Accepted sockets inherit the options of TCP.
  if (!set(SOL_SOCKET, SO_REUSEADDR, 1) || !set(IPPROTO_TCP, TCP_NODELAY, 1) ||
      !set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(answer_ms)) ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), at.ai_addrlen) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return -1;
  }
  return listener.release();
}

int PortOf(int listener) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(bound).sin_port
                                          : reinterpret_cast<const sockaddr_in6&>(bound).sin6_port);
}

// Whether the peer has sent data: the end of its stream counts as one byte.
bool HasSent(int connection) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  return getsockopt(connection, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         info.tcpi_bytes_received > 1;
}

bool Watch(int epoll, int descriptor, uint32_t events, uint64_t number) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = number;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

}  // namespace

ConnectionGate::ConnectionGate(Options options)
    : options_(std::move(options)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      last_number_(kFirstListener + kMaxListeners) {}

absl::StatusOr<std::unique_ptr<ConnectionGate>> ConnectionGate::Listen(const ListenAddress& address,
                                                                       Options options) {
  std::unique_ptr<ConnectionGate> gate(new ConnectionGate(std::move(options)));
  if (gate->epoll_.get() < 0 || gate->wake_.get() < 0 ||
      !Watch(gate->epoll_.get(), gate->wake_.get(), EPOLLIN, kWake)) {
    return absl::UnavailableError(absl::StrCat("epoll: ", std::strerror(errno)));
  }
  NIBBLE_RETURN_IF_ERROR(gate->Open(address));
  return gate;
}

absl::Status ConnectionGate::Open(const ListenAddress& address) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  // Hosts without IPv6 have the other wildcard alone.
  std::vector<std::string> hosts = {address.host};
  if (address.any) hosts = {"::", "0.0.0.0"};
  std::string problem;
  for (const std::string& host : hosts) {
    if (address.any && !listeners_.empty()) break;
    if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
      problem = gai_strerror(error);
      continue;
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
      if (listeners_.size() == kMaxListeners) break;
      // Every address of a name gets the port of the first.
      OwnedDescriptor listener(
          ListenOn(*one, port_ > 0 ? port_ : address.port, options_.answer_ms));
      if (listener.get() < 0 ||
          !Watch(epoll_.get(), listener.get(), EPOLLIN, kFirstListener + listeners_.size())) {
        problem = std::strerror(errno);
        continue;
      }
      port_ = PortOf(listener.get());
      listeners_.push_back(std::move(listener));
    }
  }
  if (!listeners_.empty()) return absl::OkStatus();
  return absl::UnavailableError(problem);
}

void ConnectionGate::Start() {
  thread_ = std::thread([this] { Serve(); });
}

ConnectionGate::~ConnectionGate() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void ConnectionGate::StopAccepting() {
  {
    const MutexLock lock(&mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  // A listener that is shut down refuses connects at once; its descriptor stays the thread's.
  for (const OwnedDescriptor& listener : listeners_) {
    (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener.get(), nullptr);
    (void)shutdown(listener.get(), SHUT_RDWR);
  }
}

size_t ConnectionGate::open() const {
  const MutexLock lock(&mutex_);
  return open_;
}

ConnectionGate::Connection* ConnectionGate::Find(absl::string_view peer) {
  const auto number =
      by_peer_.find(absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}}));
  if (number == by_peer_.end()) return nullptr;
  const auto found = connections_.find(number->second);
  return found == connections_.end() ? nullptr : &found->second;
}

bool ConnectionGate::Called(absl::string_view peer) {
  const MutexLock lock(&mutex_);
  Connection* const connection = Find(peer);
  return connection != nullptr && !std::exchange(connection->called, true);
}

void ConnectionGate::Expires(absl::string_view peer, int64_t unix_ms) {
  const MutexLock lock(&mutex_);
  if (Connection* const connection = Find(peer)) connection->expires_unix_ms = unix_ms;
}

std::vector<std::string> ConnectionGate::CloseExpired(int64_t now_unix_ms) {
  std::vector<std::string> closed;
  const MutexLock lock(&mutex_);
  for (auto& [number, connection] : connections_) {
    if (connection.expires_unix_ms == 0 || now_unix_ms < connection.expires_unix_ms) continue;
    connection.expires_unix_ms = 0;
    if (connection.watched.get() < 0) continue;
    // The server sees the end of its own descriptor.
    (void)shutdown(connection.watched.get(), SHUT_RDWR);
    closed.push_back(connection.from);
  }
  return closed;
}

bool ConnectionGate::End(absl::string_view peer) {
  const MutexLock lock(&mutex_);
  Connection* const connection = Find(peer);
  if (connection == nullptr || connection->watched.get() < 0 ||
      std::exchange(connection->ended, true)) {
    return false;
  }
  (void)shutdown(connection->watched.get(), SHUT_RDWR);
  slowed_.Slow(connection->address, SteadyNowMs());
  return true;
}

void ConnectionGate::Serve() {
  std::array<epoll_event, 256> events = {};
  while (true) {
    const int timeout =
        closed_.empty()
            ? -1
            : static_cast<int>(std::max<int64_t>(0, closed_.front().due_ms - SteadyNowMs()));
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
    {
      const MutexLock lock(&mutex_);
      if (ending_) return;
    }
    // Ends before beginnings: they make room.
    for (int pass = 0; pass < 2; ++pass) {
      for (int i = 0; i < count; ++i) {
        const uint64_t number = events[static_cast<size_t>(i)].data.u64;
        const bool listener = number < kFirstListener + kMaxListeners;
        if (number == kWake || listener != (pass == 1)) continue;
        if (listener) {
          Accept(listeners_[number - kFirstListener].get());
        } else {
          HandleClosed(number);
        }
      }
    }
    ReportSilent();
  }
}

void ConnectionGate::Accept(int listener) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    sockaddr_storage peer = {};
    socklen_t size = sizeof peer;
    OwnedDescriptor connection(
        accept4(listener, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection.get() < 0) {
      const bool scarce = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      // The listener stays ready: without a pause this thread would spin.
      if (scarce) std::this_thread::sleep_for(std::chrono::milliseconds(kPauseMs));
      if (errno == ECONNABORTED || errno == EINTR) continue;
      return;
    }
    Admit(listener, std::move(connection), PeerText(peer));
  }
}

void ConnectionGate::Admit(int listener, OwnedDescriptor connection, std::string from) {
  const absl::Status added = Add(connection.get(), from);
  if (added.ok()) {
    options_.accepted(listener, connection.release());
  } else if (options_.refused) {
    options_.refused(from, added);
  }
}

absl::Status ConnectionGate::Add(int connection, const std::string& from) {
  const std::string address = WithoutPort(from);
  const MutexLock lock(&mutex_);
  if (stopping_) return absl::UnavailableError("connections: the server is stopping");
  if (open_ >= options_.limits.all) {
    return absl::ResourceExhaustedError(
        absl::StrCat("connections: ", open_, " are open; allowed: ", options_.limits.all));
  }
  const auto of_address = by_address_.find(address);
  const size_t already = of_address == by_address_.end() ? 0 : of_address->second;
  if (already >= options_.limits.per_address) {
    return absl::ResourceExhaustedError(
        absl::StrCat("connections of ", address, ": ", already,
                     " are open; allowed: ", options_.limits.per_address));
  }
  if (const int64_t wait_ms = slowed_.Take(address, SteadyNowMs()); wait_ms > 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("connections of ", address, ": one was ended because it flooded the server; ",
                     "the next may be opened in ", wait_ms, " ms"));
  }
  OwnedDescriptor watched(fcntl(connection, F_DUPFD_CLOEXEC, 0));
  const uint64_t number = ++last_number_;
  // Only the end is waited for, which needs no flag.
  if (watched.get() < 0 || !Watch(epoll_.get(), watched.get(), 0, number)) {
    return absl::ResourceExhaustedError(absl::StrCat("connections: ", std::strerror(errno)));
  }
  ++by_address_[address];
  ++open_;
  by_peer_[from] = number;
  connections_[number] = {.watched = std::move(watched), .from = from, .address = address};
  return absl::OkStatus();
}

void ConnectionGate::HandleClosed(uint64_t number) {
  const MutexLock lock(&mutex_);
  const auto found = connections_.find(number);
  if (found == connections_.end() || found->second.watched.get() < 0) return;
  Connection& connection = found->second;
  const bool spoke = HasSent(connection.watched.get());
  // Closing would not end the watch while the server's descriptor of the socket is open.
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.watched.get(), nullptr);
  const OwnedDescriptor closing(connection.watched.release());
  --open_;
  if (const auto at = by_address_.find(connection.address); --at->second == 0)
    by_address_.erase(at);
  closed_.push_back({SteadyNowMs() + kCallDelayMs, number, spoke});
}

void ConnectionGate::ReportSilent() {
  while (!closed_.empty() && closed_.front().due_ms <= SteadyNowMs()) {
    const Closed closed = closed_.front();
    closed_.pop_front();
    Connection connection;
    {
      const MutexLock lock(&mutex_);
      const auto found = connections_.find(closed.number);
      connection = std::move(found->second);
      connections_.erase(found);
      const auto named = by_peer_.find(connection.from);
      if (named != by_peer_.end() && named->second == closed.number) by_peer_.erase(named);
    }
    if (!connection.called && closed.spoke && options_.silent) {
      options_.silent(connection.from);
    }
  }
}

size_t RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit raised = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return limit.rlim_cur == RLIM_INFINITY ? SIZE_MAX : static_cast<size_t>(limit.rlim_cur);
}

}  // namespace nibble
