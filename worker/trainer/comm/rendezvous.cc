#include "worker/trainer/comm/rendezvous.h"

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
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/listen_address.h"
#include "common/status_macros.h"
#include "worker/trainer/comm/tcp_store_server.h"

namespace nibble {

absl::Status CheckRendezvousSizes(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > tcp_store::kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rendezvous key of ", key.size(), " bytes, not in [1, ", tcp_store::kMaxKeyBytes, "]"));
  }
  if (value.size() > tcp_store::kMaxValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("rendezvous value of key ", std::string(key),
                                                   " has ", value.size(), " bytes, above ",
                                                   tcp_store::kMaxValueBytes));
  }
  return absl::OkStatus();
}

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kTryAgain = std::chrono::milliseconds(10);
// The server does not wait longer.
constexpr auto kMaxWait = std::chrono::hours(24);
// How long beyond a wait the response "not set" may take.
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
  NIBBLE_ASSIGN_OR_RETURN(const ListenAddress parsed, ParseListenAddress("address", address));
  const std::string port = std::to_string(parsed.port);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  while (true) {
    std::string why;
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(parsed.host.c_str(), port.c_str(), &hints, &found);
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

absl::Status TcpStore::Transfer(bool out, char* data, size_t bytes, Deadline deadline) {
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
  absl::Status status = Transfer(true, bytes.data(), bytes.size(), deadline);
  bytes.assign(tcp_store::kResponseHead, '\0');
  if (status.ok()) status = Transfer(false, bytes.data(), bytes.size(), deadline);
  if (!status.ok()) return status;
  const absl::StatusOr<tcp_store::ResponseHead> head = tcp_store::ParseResponse(bytes);
  if (!head.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "the server at ", address_, " is not a rendezvous server: ", head.status().message()));
  }
  *code = head->code;
  body->assign(head->value_bytes, '\0');
  return Transfer(false, body->data(), body->size(), deadline);
}

absl::StatusOr<std::string> TcpStore::Call(std::string_view request, Deadline deadline) {
  if (fd_ < 0) {
    return absl::UnavailableError(
        absl::StrCat("rendezvous server at ", address_, ": the connection has failed before"));
  }
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string body;
  if (const absl::Status status = Exchange(request, deadline, &code, &body); !status.ok()) {
    // The stream may be in the middle of a frame.
    (void)close(fd_);
    fd_ = -1;
    return status;
  }
  if (code != absl::StatusCode::kOk) return absl::Status(code, body);
  return body;
}

absl::Status TcpStore::Set(std::string_view key, std::string_view value, Deadline deadline) {
  NIBBLE_RETURN_IF_ERROR(CheckRendezvousSizes(key, value));
  const absl::Status status =
      Call(tcp_store::EncodeRequest(tcp_store::Operation::kSet, key, value, 0), deadline).status();
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("setting rendezvous key ", std::string(key),
                                                  " at ", address_, ": ", status.message()));
}

absl::StatusOr<std::string> TcpStore::Get(std::string_view key, Deadline deadline) {
  NIBBLE_RETURN_IF_ERROR(CheckRendezvousSizes(key, ""));
  const Deadline now = Clock::now();
  deadline = std::clamp(deadline, now, now + kMaxWait);
  absl::StatusOr<std::string> value = Call(
      tcp_store::EncodeRequest(tcp_store::Operation::kGet, key, "", MillisecondsLeft(deadline)),
      deadline + kAnswerTime);
  if (value.ok()) return value;
  return absl::Status(value.status().code(),
                      absl::StrCat("rendezvous key ", std::string(key), " at ", address_, ": ",
                                   value.status().message()));
}

absl::StatusOr<Rendezvous> Rendezvous::Open(const std::string& address, int rank,
                                            Deadline deadline) {
  const bool served = absl::StartsWith(address, kServedPrefix);
  if (!served && !absl::StartsWith(address, kTcpPrefix)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rendezvous = \"", address, "\" is neither tcp:host:port nor served:host:port"));
  }
  const std::string host_port =
      address.substr((served ? sizeof(kServedPrefix) : sizeof(kTcpPrefix)) - 1);
  std::unique_ptr<TcpStoreServer> server;
  if (rank == 0 && !served) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<TcpStoreServer> started,
                            TcpStoreServer::Start(host_port));
    server = std::move(started);
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<TcpStore> store, TcpStore::Connect(host_port, deadline));
  return Rendezvous(std::move(server), std::move(store));
}

absl::Status Rendezvous::Meet(const std::string& attempt, int rank, int world, Deadline deadline) {
  const auto key = [&](int r) { return absl::StrCat(attempt, "/arrived/", r); };
  const std::string mine = absl::StrCat("world ", world);
  if (absl::Status status = store_->Set(key(rank), mine, deadline); !status.ok()) {
    if (!absl::IsAlreadyExists(status)) return status;
    return absl::AlreadyExistsError(absl::StrCat("rank ", rank, " of attempt \"", attempt,
                                                 "\" has arrived before (", status.message(),
                                                 "); every attempt needs a name of its own"));
  }
  std::vector<int> missing;
  for (int r = 0; r < world; ++r) {
    const absl::StatusOr<std::string> theirs = store_->Get(key(r), deadline);
    if (absl::IsDeadlineExceeded(theirs.status())) {
      missing.push_back(r);
    } else if (!theirs.ok()) {
      return theirs.status();
    } else if (*theirs != mine) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", r, " arrived with ", *theirs, ", rank ", rank, " with ", mine));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("rendezvous of attempt \"", attempt, "\": ", NameRanks(missing), " of ", world,
                   missing.size() == 1 ? " has not arrived" : " have not arrived"));
}

std::string NameRanks(const std::vector<int>& ranks) {
  constexpr size_t kNamed = 3;
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0]);
  const size_t named = std::min(kNamed, ranks.size());
  std::string text =
      absl::StrCat("ranks ", absl::StrJoin(ranks.begin(), ranks.begin() + named, ", "));
  if (ranks.size() > named) absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  return text;
}

}  // namespace nibble
