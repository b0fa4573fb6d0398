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
#include "common/bytes.h"
#include "common/errno_error.h"
#include "common/listen_address.h"
#include "common/status_macros.h"
#include "worker/trainer/comm/signal_block.h"

namespace nibble {

namespace tcp_store {
namespace {

constexpr uint32_t kMagic = 0x5652424e;  // "NBRV"
constexpr uint8_t kVersion = 1;

template <class Number>
Number Take(std::string_view& in) {
  const auto value = LoadLittle<Number>(in.data());
  in.remove_prefix(sizeof value);
  return value;
}

absl::Status TakeIntro(std::string_view& in, size_t bytes) {
  if (in.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("head of ", in.size(), " bytes, not ", bytes));
  }
  if (const uint64_t magic = Take<uint32_t>(in); magic != kMagic) {
    return absl::InvalidArgumentError(absl::StrCat("magic ", absl::Hex(magic), " is not ours"));
  }
  if (const uint64_t version = Take<uint8_t>(in); version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("version ", version, ", not ", kVersion));
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeRequest(Operation operation, std::string_view key, std::string_view value,
                          uint64_t wait_ms) {
  std::string out;
  out.reserve(kRequestHead + key.size() + value.size());
  AppendLittle(out, kMagic);
  AppendLittle(out, kVersion);
  AppendLittle(out, static_cast<uint8_t>(operation));
  AppendLittle<uint16_t>(out, key.size());
  AppendLittle<uint32_t>(out, value.size());
  AppendLittle(out, wait_ms);
  out.append(key).append(value);
  return out;
}

std::string EncodeResponse(const absl::Status& status, std::string_view value) {
  const std::string_view body =
      status.ok() ? value : std::string_view(status.message().data(), status.message().size());
  std::string out;
  out.reserve(kResponseHead + body.size());
  AppendLittle(out, kMagic);
  AppendLittle(out, kVersion);
  AppendLittle(out, static_cast<uint8_t>(status.code()));
  AppendLittle<uint16_t>(out, 0);
  AppendLittle<uint32_t>(out, body.size());
  out.append(body);
  return out;
}

absl::StatusOr<RequestHead> ParseRequest(std::string_view head) {
  NIBBLE_RETURN_IF_ERROR(TakeIntro(head, kRequestHead));
  const uint64_t operation = Take<uint8_t>(head);
  const uint64_t key_bytes = Take<uint16_t>(head);
  const uint64_t value_bytes = Take<uint32_t>(head);
  const uint64_t wait_ms = Take<uint64_t>(head);
  const bool set = operation == static_cast<uint64_t>(Operation::kSet);
  if (!set && operation != static_cast<uint64_t>(Operation::kGet)) {
    return absl::InvalidArgumentError(absl::StrCat("operation ", operation, " is not known"));
  }
  if (key_bytes == 0 || key_bytes > kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("key of ", key_bytes, " bytes, not in [1, ", kMaxKeyBytes, "]"));
  }
  const uint64_t most = set ? kMaxValueBytes : 0;
  if (value_bytes > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("value of ", value_bytes, " bytes, above ", most));
  }
  return RequestHead{static_cast<Operation>(operation), key_bytes, value_bytes, wait_ms};
}

absl::StatusOr<ResponseHead> ParseResponse(std::string_view head) {
  NIBBLE_RETURN_IF_ERROR(TakeIntro(head, kResponseHead));
  const uint64_t code = Take<uint8_t>(head);
  const uint64_t zero = Take<uint16_t>(head);
  const uint64_t value_bytes = Take<uint32_t>(head);
  if (code > static_cast<uint64_t>(absl::StatusCode::kUnauthenticated) || zero != 0) {
    return absl::InvalidArgumentError(absl::StrCat("status ", code, " is not known"));
  }
  if (value_bytes > kMaxValueBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("value of ", value_bytes, " bytes, above ", kMaxValueBytes));
  }
  return ResponseHead{static_cast<absl::StatusCode>(code), value_bytes};
}

}  // namespace tcp_store

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kNever = Clock::time_point::max();
constexpr uint64_t kMaxWaitMs = uint64_t{24} * 3600 * 1000;
// A process without free descriptors cannot accept: it retries at this interval.
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

absl::StatusOr<int> Listen(const ListenAddress& address) {
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
        // A waiting client sends nothing; a hang-up is reported in any case.
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
        Answer(connection, absl::DeadlineExceededError("the key was not set in time"), "");
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
      // A client may be silent between requests, but not within one.
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
  NIBBLE_ASSIGN_OR_RETURN(const ListenAddress parsed, ParseListenAddress("address", address));
  NIBBLE_ASSIGN_OR_RETURN(const int listen_fd, Listen(parsed));
  const uint16_t port = PortOf(listen_fd);
  const int stop_fd = eventfd(0, EFD_CLOEXEC);
  if (stop_fd < 0) {
    const int error = errno;
    (void)close(listen_fd);
    return ErrnoError(error, "making an eventfd for a rendezvous server");
  }
  auto loop = std::make_unique<Loop>(listen_fd, stop_fd, limits);
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
