// Addresses that servers listen on, and at which others reach them: host:port, with [] around an
// IPv6 host. To listen on port 0 is to listen on a free port.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_LISTEN_ADDRESS_H_
#define NIBBLE_COMMON_LISTEN_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

struct ListenAddress {
  std::string host;  // without []
  int port = 0;
  bool loopback = false;
  bool any = false;         // every interface
  bool link_local = false;  // of a network without a router; ParseNamedAddress alone sets it

  std::string ToString() const;
};

// InvalidArgument, naming `field`: not host:port.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view field, absl::string_view text);

// An address at which other programs reach this one. InvalidArgument, naming `field`: not host:port
// with a host name or IP address, port 0, or the address of every interface or of several hosts.
absl::StatusOr<ListenAddress> ParseNamedAddress(absl::string_view field, absl::string_view text);

// FailedPrecondition: the address is off loopback and not `insecure`. Otherwise the errors of
// ParseListenAddress.
absl::Status CheckListenAddress(absl::string_view field, absl::string_view text, bool insecure);

}  // namespace nibble

#endif  // NIBBLE_COMMON_LISTEN_ADDRESS_H_
