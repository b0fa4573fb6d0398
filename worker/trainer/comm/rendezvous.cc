#include "worker/trainer/comm/rendezvous.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/trainer/comm/tcp_store_server.h"

namespace nibble {

absl::Status CheckRendezvousSizes(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > RendezvousStore::kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("rendezvous key of ", key.size(),
                                                   " bytes, not in [1, ",
                                                   RendezvousStore::kMaxKeyBytes, "]"));
  }
  if (value.size() > RendezvousStore::kMaxValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("rendezvous value of key ", std::string(key),
                                                   " has ", value.size(), " bytes, above ",
                                                   RendezvousStore::kMaxValueBytes));
  }
  return absl::OkStatus();
}

namespace {

// Shared file systems do not report changes by other machines, so readers poll.
constexpr auto kLookAgain = std::chrono::milliseconds(2);
// A file name holds 255 bytes and an escaped byte takes three.
constexpr size_t kMaxNameBytes = 240;

absl::Status WriteAll(int fd, std::string_view value, const std::string& path) {
  while (!value.empty()) {
    const ssize_t written = write(fd, value.data(), value.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return absl::ErrnoToStatus(errno, absl::StrCat("writing ", path));
    }
    value.remove_prefix(written);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileStore>> FileStore::Open(const std::string& directory) {
  struct stat info = {};
  if (stat(directory.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("rendezvous directory ", directory));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("rendezvous directory ", directory, " is not a directory"));
  }
  return std::unique_ptr<FileStore>(new FileStore(directory));
}

void FileStore::Done() {
  for (const std::string& path : written_) (void)unlink(path.c_str());
  written_.clear();
}

std::string FileStore::PathOf(std::string_view key) const {
  std::string name;
  for (const unsigned char c : key) {
    if (absl::ascii_isalnum(c)) {
      name.push_back(static_cast<char>(c));
    } else {
      absl::StrAppend(&name, "_", absl::Hex(c, absl::kZeroPad2));
    }
  }
  return absl::StrCat(directory_, "/", name);
}

absl::Status FileStore::Set(std::string_view key, std::string_view value, Deadline) {
  NIBBLE_RETURN_IF_ERROR(CheckRendezvousSizes(key, value));
  const std::string path = PathOf(key);
  if (path.size() - directory_.size() - 1 > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rendezvous key ", std::string(key), " makes a file name above ", kMaxNameBytes, " bytes"));
  }
  const std::string temporary = absl::StrCat(path, ".", getpid());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("creating ", temporary));
  const absl::Cleanup remove_temporary = [&] { (void)unlink(temporary.c_str()); };
  absl::Status status = WriteAll(fd, value, temporary);
  if (close(fd) != 0 && status.ok()) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("closing ", temporary));
  }
  if (!status.ok()) return status;
  // A link fails if the name exists; a rename would replace it.
  if (link(temporary.c_str(), path.c_str()) != 0) {
    if (errno == EEXIST) {
      return absl::AlreadyExistsError(absl::StrCat("rendezvous key ", std::string(key),
                                                   " is already in ", directory_, " (", path, ")"));
    }
    return absl::ErrnoToStatus(errno, absl::StrCat("creating ", path));
  }
  written_.push_back(path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> FileStore::Get(std::string_view key, Deadline deadline) {
  NIBBLE_RETURN_IF_ERROR(CheckRendezvousSizes(key, ""));
  const std::string path = PathOf(key);
  int fd = -1;
  while ((fd = open(path.c_str(), O_RDONLY | O_CLOEXEC)) < 0) {
    if (errno != ENOENT && errno != EINTR) {
      return absl::ErrnoToStatus(errno, absl::StrCat("opening ", path));
    }
    const Deadline now = std::chrono::steady_clock::now();
    if (deadline <= now) {
      return absl::DeadlineExceededError(
          absl::StrCat("rendezvous key ", std::string(key), " did not come to ", directory_));
    }
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(deadline - now, kLookAgain));
  }
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  std::string value(kMaxValueBytes + 1, '\0');
  size_t size = 0;
  while (size < value.size()) {
    const ssize_t got = read(fd, value.data() + size, value.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("reading ", path));
    if (got == 0) break;
    size += got;
  }
  value.resize(size);
  NIBBLE_RETURN_IF_ERROR(CheckRendezvousSizes(key, value));
  return value;
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
  NIBBLE_ASSIGN_OR_RETURN(const tcp_store::HostPort parsed, tcp_store::ParseHostPort(address));
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
      Ask(tcp_store::EncodeRequest(tcp_store::Operation::kSet, key, value, 0), deadline).status();
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("setting rendezvous key ", std::string(key),
                                                  " at ", address_, ": ", status.message()));
}

absl::StatusOr<std::string> TcpStore::Get(std::string_view key, Deadline deadline) {
  NIBBLE_RETURN_IF_ERROR(CheckRendezvousSizes(key, ""));
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

absl::StatusOr<Rendezvous> Rendezvous::Open(const std::string& address, int rank,
                                            Deadline deadline) {
  if (absl::StartsWith(address, kFilePrefix)) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<FileStore> store,
                            FileStore::Open(address.substr(sizeof(kFilePrefix) - 1)));
    return Rendezvous(nullptr, std::move(store));
  }
  const bool served = absl::StartsWith(address, kServedPrefix);
  if (!served && !absl::StartsWith(address, kTcpPrefix)) {
    return absl::InvalidArgumentError(absl::StrCat("rendezvous = \"", address,
                                                   "\" is neither file:/directory nor "
                                                   "tcp:host:port nor served:host:port"));
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
                                                 "\" has come before (", status.message(),
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
          absl::StrCat("rank ", r, " came for ", *theirs, ", rank ", rank, " for ", mine));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("rendezvous of attempt \"", attempt, "\": ", NameRanks(missing), " of ", world,
                   missing.size() == 1 ? " has not come" : " have not come"));
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
