// Addresses that servers listen at, and at which others reach them: host:port, with [] around an
// IPv6 host; port 0, to listen at, is a free one.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_METRICS_LISTEN_ADDRESS_H_
#define NIBBLE_COMMON_METRICS_LISTEN_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

struct ListenAddress {
  std::string host;  // without []
  int port = 0;
  bool loopback = false;
  bool any = false;  // of every interface

  std::string ToString() const;
};

// InvalidArgument naming `field` for what is no host:port.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view field, absl::string_view text);

// As a program names itself to others, who are to reach it there. InvalidArgument naming `field`
// for what is no host:port with a host name or IP address, for port 0 and for every interface.
absl::StatusOr<ListenAddress> ParseNamedAddress(absl::string_view field, absl::string_view text);

// FailedPrecondition where it is off loopback and that is not said to be meant; otherwise as
// ParseListenAddress.
absl::Status CheckListenAddress(absl::string_view field, absl::string_view text, bool insecure);

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_LISTEN_ADDRESS_H_
