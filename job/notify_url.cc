#include "job/notify_url.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr size_t kMostHostBytes = 253;
constexpr int kHttpPort = 80, kHttpsPort = 443;

absl::Status Wrong(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(what), "; allowed: http://HOST[:PORT][/PATH], or https"));
}

bool IsIpv6(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

std::string Bracketed(const std::string& host) {
  return host.find(':') == std::string::npos ? host : absl::StrCat("[", host, "]");
}

// Parses "host:port" or "[host]:port" at the start of `rest`, which begins after the scheme.
absl::Status TakeHost(std::string_view rest, NotifyUrl& url) {
  std::string_view port;
  if (rest.starts_with('[')) {
    const size_t end = rest.find(']');
    if (end == std::string_view::npos) return Wrong("the [ of an IPv6 address has no ]");
    url.host = absl::AsciiStrToLower(std::string(rest.substr(1, end - 1)));
    port = rest.substr(end + 1);
    if (!IsIpv6(url.host)) return Wrong("the text in [] is not an IPv6 address");
  } else {
    const size_t colon = std::min(rest.find(':'), rest.size());
    url.host = absl::AsciiStrToLower(std::string(rest.substr(0, colon)));
    port = rest.substr(colon);
    if (!IsHost(url.host)) return Wrong("the host is neither a name nor an IP address");
  }
  if (port.empty()) return absl::OkStatus();
  int number = 0;
  const bool digits =
      port.size() >= 2 && port.size() <= 6 && port[0] == ':' &&
      std::all_of(port.begin() + 1, port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || !absl::SimpleAtoi(std::string(port.substr(1)), &number) || number < 1 ||
      number > 65'535) {
    return Wrong("the port is not a number from 1 to 65535");
  }
  url.port = number;
  return absl::OkStatus();
}

}  // namespace

std::string NotifyUrl::HostHeader() const {
  const bool usual = port == (tls ? kHttpsPort : kHttpPort);
  return usual ? Bracketed(host) : absl::StrCat(Bracketed(host), ":", port);
}

std::string NotifyUrl::Origin() const {
  return absl::StrCat(tls ? "https://" : "http://", HostHeader());
}

bool IsIpAddress(std::string_view host) {
  in_addr address;
  const std::string text(host);
  return inet_pton(AF_INET, text.c_str(), &address) == 1 || IsIpv6(text);
}

bool IsHost(std::string_view host) {
  if (IsIpAddress(host)) return true;
  if (host.empty() || host.size() > kMostHostBytes || host.front() == '-') return false;
  const bool known = std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
  if (!known || host.front() == '.' || host.find("..") != std::string_view::npos) return false;
  if (host.ends_with('.')) return false;
  const std::string_view last = host.substr(host.rfind('.') + 1);
  return !absl::ascii_isdigit(static_cast<unsigned char>(last.front()));
}

absl::StatusOr<NotifyUrl> ParseNotifyUrl(std::string_view text) {
  if (text.size() > kMaxNotifyUrlBytes) {
    return Wrong(absl::StrCat("the URL has ", text.size(), " bytes; at most ", kMaxNotifyUrlBytes,
                              " are allowed"));
  }
  const bool printable =
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!printable) return Wrong("blanks and non-ASCII characters must be written as %XX");
  NotifyUrl url;
  std::string_view rest = text;
  url.tls = rest.starts_with("https://");
  if (!url.tls && !rest.starts_with("http://")) return Wrong("the scheme is not http or https");
  url.port = url.tls ? kHttpsPort : kHttpPort;
  rest.remove_prefix(url.tls ? 8 : 7);
  if (rest.find('#') != std::string_view::npos) return Wrong("a fragment (#) is never sent");
  const std::string_view authority = rest.substr(0, rest.find_first_of("/?"));
  if (authority.find('@') != std::string_view::npos) {
    return Wrong("a user name or password would be stored and shown with the job");
  }
  NIBBLE_RETURN_IF_ERROR(TakeHost(authority, url));
  rest.remove_prefix(authority.size());
  url.target = rest.starts_with('/') ? std::string(rest) : absl::StrCat("/", std::string(rest));
  return url;
}

}  // namespace nibble
