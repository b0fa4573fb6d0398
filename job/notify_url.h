// URLs to which events of jobs are posted: http://HOST[:PORT][/PATH], or https.
//
// A host is a name or an IP address in its usual form. Forms that only some programs read as an
// address ("127.1", "0x7f000001") are refused, so that the host that is compared with the list of
// allowed hosts is the one connected to. User names and fragments are refused, too.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_JOB_NOTIFY_URL_H_
#define NIBBLE_JOB_NOTIFY_URL_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nibble {

inline constexpr size_t kMaxNotifyUrlBytes = 1000;

struct NotifyUrl {
  bool tls = false;
  std::string host;  // lower case, an IPv6 address without []
  int port = 80;
  std::string target = "/";  // path and query

  // "http://host:port", with [] around an IPv6 address: the URL without parts that may be secret.
  std::string Origin() const;
  // The value of the Host header: "host", "host:8080".
  std::string HostHeader() const;
};

// InvalidArgument with the problem and what is allowed.
absl::StatusOr<NotifyUrl> ParseNotifyUrl(std::string_view url);

// True for a host name (letters, digits, '-', '_' and '.', the last label not beginning with a
// digit) and for an IP address.
bool IsHost(std::string_view host);
bool IsIpAddress(std::string_view host);

}  // namespace nibble

#endif  // NIBBLE_JOB_NOTIFY_URL_H_
