// URLs to which events of jobs are posted: http://HOST[:PORT][/PATH], or https.
//
// A host is a name or an IP address in its usual form. What other programs read as an address
// ("127.1", "0x7f000001") is refused, so that what a list of allowed hosts is compared with is what
// is connected to. So are user names and fragments.
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

  // "http://host:port", with [] around an IPv6 address: a URL without what may be secret in it.
  std::string Origin() const;
  // "host", "host:8080": as the header has it.
  std::string HostHeader() const;
};

// InvalidArgument saying what is wrong and what is allowed.
absl::StatusOr<NotifyUrl> ParseNotifyUrl(std::string_view url);

// A host name (letters, digits, '-', '_' and '.', and not all digits at its end) or an IP address.
bool IsHost(std::string_view host);
bool IsIpAddress(std::string_view host);

}  // namespace nibble

#endif  // NIBBLE_JOB_NOTIFY_URL_H_
