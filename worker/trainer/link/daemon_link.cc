#include "worker/trainer/link/daemon_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

constexpr size_t kReadBytes = 65536;

bool NotNow(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

absl::Status Gone(const char* doing, int error) {
  return absl::UnavailableError(
      absl::StrCat("the daemon is gone: ", doing, ": ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DaemonLink>> DaemonLink::Connect(const Options& options) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (options.address.empty() || options.address.size() >= sizeof name.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("address: '", options.address, "' has ",
                                                   options.address.size(), " bytes, not in [1, ",
                                                   sizeof name.sun_path - 1, "]"));
  }
  std::memcpy(name.sun_path, options.address.data(), options.address.size());
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return absl::InternalError(absl::StrCat("socket: ", std::strerror(errno)));
  std::unique_ptr<DaemonLink> link(new DaemonLink(socket));
  if (connect(socket, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no daemon at ", options.address, ": ", std::strerror(errno)));
  }
  link->sending_ = FrameOf(EncodeHello(
      {.rank = options.rank, .attempt = options.attempt, .pid = static_cast<int64_t>(getpid())}));
  if (absl::Status sent = link->Send(); !sent.ok()) return sent;
  return link;
}

DaemonLink::~DaemonLink() {
  // The last news, of a rank that ends, should not be lost where there is room for it.
  if (gone_.ok()) (void)Send();
  close(socket_);
}

void DaemonLink::Report(const RankNews& news) {
  next_ = FrameOf(EncodeNews(news));
  if (gone_.ok()) gone_ = Send();
}

absl::Status DaemonLink::Send() {
  while (true) {
    if (sending_.empty()) sending_ = std::exchange(next_, std::string());
    if (sending_.empty()) return absl::OkStatus();
    const ssize_t sent =
        send(socket_, sending_.data(), sending_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && NotNow(errno)) return absl::OkStatus();
    if (sent < 0) return Gone("sending", errno);
    sending_.erase(0, static_cast<size_t>(sent));
  }
}

absl::Status DaemonLink::Receive() {
  char bytes[kReadBytes];
  while (true) {
    const ssize_t got = recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && NotNow(errno)) return absl::OkStatus();
    if (got < 0) return Gone("receiving", errno);
    if (got == 0) return absl::UnavailableError("the daemon is gone: it has closed the link");
    reader_.Append({bytes, static_cast<size_t>(got)});
    while (true) {
      absl::StatusOr<std::optional<std::string>> message = reader_.Next();
      if (!message.ok()) return message.status();
      if (!message->has_value()) break;
      absl::StatusOr<ControlWord> word = DecodeControl(**message);
      if (!word.ok()) return word.status();
      word_ = *std::move(word);
      heard_ = true;
    }
  }
}

absl::StatusOr<ControlWord> DaemonLink::Poll() {
  if (gone_.ok()) gone_ = Send();
  if (gone_.ok()) gone_ = Receive();
  if (!gone_.ok()) return gone_;
  return word_;
}

absl::Status DaemonLink::AwaitWord(std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (true) {
    if (absl::Status status = Poll().status(); !status.ok()) return status;
    if (heard_) return absl::OkStatus();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("the daemon has not said within ", patience.count(), " ms what it wants"));
    }
    pollfd one = {.fd = socket_, .events = POLLIN};
    (void)poll(&one, 1, static_cast<int>(left.count()));
  }
}

absl::StatusOr<ControlWord> DaemonLink::WaitForChange(std::chrono::milliseconds patience) {
  pollfd one = {.fd = socket_, .events = POLLIN};
  // An interrupted wait is a short one: whoever stands comes back.
  (void)poll(&one, 1, static_cast<int>(patience.count()));
  return Poll();
}

}  // namespace nibble
