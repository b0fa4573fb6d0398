#include "server/notify/http_post.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/notify/timed_stream.h"

namespace nibble {
namespace {

constexpr size_t kMostHeadBytes = 8192;
constexpr double kMsPerSecond = 1000;

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

// Those that may be connected to, in the resolver's order.
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
      "its host resolves to ", refused, ", an address that --notify-allow does not name"));
}

std::string RequestText(const HttpPost& post) {
  std::string text =
      absl::StrCat("POST ", post.url.target, " HTTP/1.1\r\nHost: ", post.url.HostHeader(),
                   "\r\nContent-Length: ", post.body.size(), "\r\nConnection: close\r\n");
  for (const auto& [name, value] : post.headers) absl::StrAppend(&text, name, ": ", value, "\r\n");
  absl::StrAppend(&text, "\r\n", post.body);
  return text;
}

// "HTTP/1.1 204 No Content"; 0 where it is no status line.
int CodeOf(std::string_view line) {
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ') return 0;
  int code = 0;
  for (const char c : line.substr(9, 3)) {
    if (c < '0' || c > '9') return 0;
    code = 10 * code + (c - '0');
  }
  return code >= 100 && code <= 599 ? code : 0;
}

// Passes over interim answers (1xx).
absl::StatusOr<int> ReadCode(TimedStream& stream) {
  std::string head;
  char buffer[1024];
  while (true) {
    const size_t end = head.find("\r\n");
    if (end != std::string::npos) {
      const int code = CodeOf(std::string_view(head).substr(0, end));
      if (code == 0) return absl::UnavailableError("what it answered is not HTTP/1.1");
      if (code >= 200) return code;
      if (const size_t next = head.find("\r\n\r\n"); next != std::string::npos) {
        head.erase(0, next + 4);
        continue;
      }
    }
    if (head.size() > kMostHeadBytes) return absl::UnavailableError("its answer has no status");
    const absl::StatusOr<size_t> read = stream.Read(buffer, sizeof(buffer));
    if (!read.ok()) return read.status();
    if (*read == 0) return absl::UnavailableError("it closed the connection without an answer");
    head.append(buffer, *read);
  }
}

absl::StatusOr<int> Exchange(const HttpPost& post, const std::vector<IpAddress>& addresses,
                             TimedStream& stream) {
  absl::Status status;
  for (const IpAddress& address : addresses) {
    status = stream.Connect(address, post.url.port);
    if (!absl::IsUnavailable(status)) break;  // connected, or no time for another
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
  const absl::StatusOr<std::vector<IpAddress>> addresses = Resolve(post);
  if (!addresses.ok()) return addresses.status();
  TimedStream stream(deadline, cancel.fd());
  const absl::StatusOr<int> code = Exchange(post, *addresses, stream);
  if (!absl::IsDeadlineExceeded(code.status())) return code;
  return absl::DeadlineExceededError(absl::StrFormat(
      "no answer within %g s", static_cast<double>(post.limit.count()) / kMsPerSecond));
}

}  // namespace nibble
