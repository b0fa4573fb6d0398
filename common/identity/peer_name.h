// The names of programs in certificates: URIs among the subject alternative names.
//
//   nibble://coordinator      the coordinator of a cluster
//   nibble://worker/NAME      the daemon with that name (nibble-worker --name)
//   nibble://client/NAME      a program that calls the coordinator, such as `nibble`
//
// A certificate has exactly one such URI; its other names are not used. The common name is not used
// either, because authorities do not agree on what it contains.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_IDENTITY_PEER_NAME_H_
#define NIBBLE_COMMON_IDENTITY_PEER_NAME_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

enum class PeerKind : char {
  kUnnamed,  // no certificate: the connection is not encrypted
  kCoordinator,
  kWorker,
  kClient,
};

struct PeerName {
  PeerKind kind = PeerKind::kUnnamed;
  std::string name;  // of a worker or client; empty otherwise

  // The URI; "unnamed" for kUnnamed.
  std::string ToString() const;
  bool operator==(const PeerName&) const = default;
};

inline constexpr size_t kMaxIdentityBytes = 100;

// InvalidArgument, naming `field`, unless the text is 1 to kMaxIdentityBytes of [A-Za-z0-9._@-] and
// begins with a letter or digit: the names of workers, clients and owners of tokens.
absl::Status CheckIdentityName(absl::string_view field, absl::string_view text);

// InvalidArgument: not one of the forms above.
absl::StatusOr<PeerName> ParsePeerUri(absl::string_view uri);

// The name in a certificate with these URIs. InvalidArgument: none of them begins with nibble://,
// or several do.
absl::StatusOr<PeerName> PeerOfUris(const std::vector<std::string>& uris);

}  // namespace nibble

#endif  // NIBBLE_COMMON_IDENTITY_PEER_NAME_H_
