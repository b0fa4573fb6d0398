#include "server/notify/http_post.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/openssl/openssl_error.h"
#include "common/openssl/owned.h"
#include "common/status_macros.h"
#include "job/notify_url.h"

namespace nibble {
namespace {

absl::Status Failed(std::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(std::string(what), ": ", std::strerror(error)));
}

std::string TlsProblem() { return TakeOpenSslError("the connection was closed"); }

constexpr size_t kMaxHeadBytes = 8192;
constexpr double kMsPerSecond = 1000;

// A TCP connection, with or without TLS. Every operation ends at the deadline, or when the stream
// is cancelled. Owns its socket. Not thread-safe.
class TimedStream {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `cancel_fd` is readable once the stream is cancelled.
  TimedStream(Time deadline, int cancel_fd) : deadline_(deadline), cancel_fd_(cancel_fd) {}
  ~TimedStream();
  TimedStream(const TimedStream&) = delete;
  TimedStream& operator=(const TimedStream&) = delete;

  // All of them may return DeadlineExceeded, Cancelled, or Unavailable.
  absl::Status Connect(const IpAddress& address, int port);
  // Verifies the certificate against the system's roots and `host`.
  absl::Status StartTls(const std::string& host);
  absl::Status Write(std::string_view bytes);
  // At least one byte; 0: the peer has closed.
  absl::StatusOr<size_t> Read(char* buffer, size_t size);

 private:
  // Waits until the socket is ready for POLLIN or POLLOUT.
  absl::Status Await(short events) const;
  // Waits for what a TLS operation that returned `result` needs, or returns why it failed.
  absl::Status AwaitTls(int result, const char* what) const;

  const Time deadline_;
  const int cancel_fd_;
  int fd_ = -1;
  Owned<SSL_CTX, SSL_CTX_free> context_;
  Owned<SSL, SSL_free> tls_;
};

TimedStream::~TimedStream() {
  tls_.reset();
  if (fd_ >= 0) close(fd_);
}

absl::Status TimedStream::Await(short events) const {
  pollfd waited[] = {{fd_, events, 0}, {cancel_fd_, POLLIN, 0}};
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    if (left.count() <= 0) return absl::DeadlineExceededError("no answer in time");
    const int ready = poll(waited, 2, static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
    if (ready < 0 && errno != EINTR) return Failed("poll", errno);
    if (ready <= 0) continue;
    if (waited[1].revents != 0) return absl::CancelledError("the coordinator is stopping");
    return absl::OkStatus();
  }
}

absl::Status TimedStream::Connect(const IpAddress& address, int port) {
  if (fd_ >= 0) close(fd_);
  // IPv4 addresses get an IPv4 socket: hosts without IPv6 have no other.
  const bool v4 = !IpText(address).empty() && IpText(address).find(':') == std::string::npos;
  sockaddr_in6 six = {};
  sockaddr_in four = {};
  six.sin6_family = AF_INET6;
  four.sin_family = AF_INET;
  six.sin6_port = four.sin_port = htons(static_cast<uint16_t>(port));
  std::memcpy(&six.sin6_addr, address.data(), 16);
  std::memcpy(&four.sin_addr, address.data() + 12, 4);
  fd_ = socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return Failed("socket", errno);
  const auto* const to =
      v4 ? reinterpret_cast<const sockaddr*>(&four) : reinterpret_cast<const sockaddr*>(&six);
  if (connect(fd_, to, v4 ? sizeof(four) : sizeof(six)) == 0) return absl::OkStatus();
  if (errno != EINPROGRESS) return Failed("connecting", errno);
  NIBBLE_RETURN_IF_ERROR(Await(POLLOUT));
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? absl::OkStatus() : Failed("connecting", error);
}

absl::Status TimedStream::AwaitTls(int result, const char* what) const {
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Await(POLLIN);
    case SSL_ERROR_WANT_WRITE:
      return Await(POLLOUT);
    default:
      break;
  }
  const long verified = SSL_get_verify_result(tls_.get());
  return absl::UnavailableError(absl::StrCat(
      what, ": ",
      verified == X509_V_OK ? TlsProblem() : std::string(X509_verify_cert_error_string(verified))));
}

absl::Status TimedStream::StartTls(const std::string& host) {
  ERR_clear_error();
  context_.reset(SSL_CTX_new(TLS_client_method()));
  if (context_ == nullptr || SSL_CTX_set_default_verify_paths(context_.get()) != 1) {
    return absl::UnavailableError(absl::StrCat("TLS: ", TlsProblem()));
  }
  SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context_.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  tls_.reset(SSL_new(context_.get()));
  if (tls_ == nullptr || SSL_set_fd(tls_.get(), fd_) != 1) {
    return absl::UnavailableError(absl::StrCat("TLS: ", TlsProblem()));
  }
  const bool named =
      IsIpAddress(host)
          ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_.get()), host.c_str()) == 1
          : SSL_set1_host(tls_.get(), host.c_str()) == 1 &&
                SSL_set_tlsext_host_name(tls_.get(), host.c_str()) == 1;
  if (!named) return absl::UnavailableError(absl::StrCat("TLS: ", TlsProblem()));
  while (true) {
    ERR_clear_error();
    const int result = SSL_connect(tls_.get());
    if (result == 1) return absl::OkStatus();
    NIBBLE_RETURN_IF_ERROR(AwaitTls(result, "TLS handshake"));
  }
}

absl::Status TimedStream::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = 0;
    if (tls_ != nullptr) {
      ERR_clear_error();
      written = SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()));
      if (written <= 0) {
        NIBBLE_RETURN_IF_ERROR(AwaitTls(static_cast<int>(written), "sending"));
        continue;
      }
    } else {
      written = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (written < 0 && errno != EAGAIN && errno != EINTR) return Failed("sending", errno);
      if (written < 0) {
        NIBBLE_RETURN_IF_ERROR(Await(POLLOUT));
        continue;
      }
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> TimedStream::Read(char* buffer, size_t size) {
  while (true) {
    if (tls_ != nullptr) {
      ERR_clear_error();
      const int read = SSL_read(tls_.get(), buffer, static_cast<int>(size));
      if (read > 0) return static_cast<size_t>(read);
      if (SSL_get_error(tls_.get(), read) == SSL_ERROR_ZERO_RETURN) return 0;
      NIBBLE_RETURN_IF_ERROR(AwaitTls(read, "receiving"));
      continue;
    }
    NIBBLE_RETURN_IF_ERROR(Await(POLLIN));
    const ssize_t read = recv(fd_, buffer, size, 0);
    if (read >= 0) return static_cast<size_t>(read);
    if (errno != EAGAIN && errno != EINTR) return Failed("receiving", errno);
  }
}

IpAddress AddressOf(const addrinfo& found) {
  IpAddress address = {};
  if (found.ai_family == AF_INET6) {
    const auto* const six = reinterpret_cast<const sockaddr_in6*>(found.ai_addr);
    std::memcpy(address.data(), &six->sin6_addr, 16);
  } else {
    const auto* const four = reinterpret_cast<const sockaddr_in*>(found.ai_addr);
    address[10] = address[11] = 0xff;
    std::memcpy(address.data() + 12, &four->sin_addr, 4);
  }
  return address;
}

// The allowed addresses, in the resolver's order.
absl::StatusOr<std::vector<IpAddress>> Resolve(const HttpPost& post) {
  addrinfo wanted = {};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  if (IsIpAddress(post.url.host)) wanted.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(post.url.host.c_str(), nullptr, &wanted, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("resolving the host: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<IpAddress> addresses;
  std::string refused;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    const IpAddress address = AddressOf(*one);
    if (post.may_connect(address)) {
      addresses.push_back(address);
    } else {
      refused = IpText(address);
    }
  }
  if (!addresses.empty()) return addresses;
  return absl::PermissionDeniedError(absl::StrCat(
      "the host resolves to ", refused, ", an address that --notify-allow does not allow"));
}

std::string RequestText(const HttpPost& post) {
  std::string text =
      absl::StrCat("POST ", post.url.target, " HTTP/1.1\r\nHost: ", post.url.HostHeader(),
                   "\r\nContent-Length: ", post.body.size(), "\r\nConnection: close\r\n");
  for (const auto& [name, value] : post.headers) absl::StrAppend(&text, name, ": ", value, "\r\n");
  absl::StrAppend(&text, "\r\n", post.body);
  return text;
}

// The code of "HTTP/1.1 204 No Content"; 0: not a status line.
int CodeOf(std::string_view line) {
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ') return 0;
  int code = 0;
  for (const char c : line.substr(9, 3)) {
    if (c < '0' || c > '9') return 0;
    code = 10 * code + (c - '0');
  }
  return code >= 100 && code <= 599 ? code : 0;
}

// Skips interim answers (1xx).
absl::StatusOr<int> ReadCode(TimedStream& stream) {
  std::string head;
  char buffer[1024];
  while (true) {
    const size_t end = head.find("\r\n");
    if (end != std::string::npos) {
      const int code = CodeOf(std::string_view(head).substr(0, end));
      if (code == 0) return absl::UnavailableError("the answer is not HTTP/1.1");
      if (code >= 200) return code;
      if (const size_t next = head.find("\r\n\r\n"); next != std::string::npos) {
        head.erase(0, next + 4);
        continue;
      }
    }
    if (head.size() > kMaxHeadBytes) return absl::UnavailableError("the answer has no status line");
    NIBBLE_ASSIGN_OR_RETURN(const size_t read, stream.Read(buffer, sizeof(buffer)));
    if (read == 0)
      return absl::UnavailableError("the receiver closed the connection without an answer");
    head.append(buffer, read);
  }
}

absl::StatusOr<int> Exchange(const HttpPost& post, const std::vector<IpAddress>& addresses,
                             TimedStream& stream) {
  absl::Status status;
  for (const IpAddress& address : addresses) {
    status = stream.Connect(address, post.url.port);
    if (!absl::IsUnavailable(status)) break;  // connected, or no time for another address
  }
  if (status.ok() && post.url.tls) status = stream.StartTls(post.url.host);
  if (status.ok()) status = stream.Write(RequestText(post));
  if (!status.ok()) return status;
  return ReadCode(stream);
}

}  // namespace

Cancel::Cancel() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
Cancel::~Cancel() {
  if (fd_ >= 0) close(fd_);
}
void Cancel::Set() {
  const uint64_t one = 1;
  (void)!write(fd_, &one, sizeof(one));
}

absl::StatusOr<int> PostHttp(const HttpPost& post, const Cancel& cancel) {
  const auto deadline = std::chrono::steady_clock::now() + post.limit;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<IpAddress> addresses, Resolve(post));
  TimedStream stream(deadline, cancel.fd());
  const absl::StatusOr<int> code = Exchange(post, addresses, stream);
  if (!absl::IsDeadlineExceeded(code.status())) return code;
  return absl::DeadlineExceededError(absl::StrFormat(
      "no answer within %g s", static_cast<double>(post.limit.count()) / kMsPerSecond));
}

}  // namespace nibble
