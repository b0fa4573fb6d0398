#include "server/notify/timed_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "job/notify_url.h"

namespace nibble {
namespace {

absl::Status Failed(std::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(std::string(what), ": ", std::strerror(error)));
}

std::string TlsProblem() {
  char text[256] = "the connection was closed";
  if (const unsigned long code = ERR_get_error(); code != 0) {
    ERR_error_string_n(code, text, sizeof(text));
  }
  ERR_clear_error();
  return text;
}

}  // namespace

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
    if (waited[1].revents != 0) return absl::CancelledError("the coordinator ends");
    return absl::OkStatus();
  }
}

absl::Status TimedStream::Connect(const IpAddress& address, int port) {
  if (fd_ >= 0) close(fd_);
  // A socket of IPv4 for what is one: hosts without IPv6 have no other.
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
  if (absl::Status status = Await(POLLOUT); !status.ok()) return status;
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
    if (absl::Status status = AwaitTls(result, "TLS handshake"); !status.ok()) return status;
  }
}

absl::Status TimedStream::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = 0;
    if (tls_ != nullptr) {
      ERR_clear_error();
      written = SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()));
      if (written <= 0) {
        absl::Status status = AwaitTls(static_cast<int>(written), "sending");
        if (!status.ok()) return status;
        continue;
      }
    } else {
      written = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (written < 0 && errno != EAGAIN && errno != EINTR) return Failed("sending", errno);
      if (written < 0) {
        if (absl::Status status = Await(POLLOUT); !status.ok()) return status;
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
      if (absl::Status status = AwaitTls(read, "receiving"); !status.ok()) return status;
      continue;
    }
    if (absl::Status status = Await(POLLIN); !status.ok()) return status;
    const ssize_t read = recv(fd_, buffer, size, 0);
    if (read >= 0) return static_cast<size_t>(read);
    if (errno != EAGAIN && errno != EINTR) return Failed("receiving", errno);
  }
}

}  // namespace nibble
