// Certificates for development: an authority of one's own, and what it issues, as files.
//
//   ca.pem, ca-key.pem           the authority; whoever has the key can be anybody
//   coordinator.pem, -key.pem    nibble://coordinator
//   WORKER.pem, -key.pem         nibble://worker/WORKER, for each worker
//   CLIENT.pem, -key.pem         nibble://client/CLIENT, for each client
//
// Ownership: values. Thread-safety: functions of the disk; one at a time per directory.
#ifndef NIBBLE_CLIENT_CLUSTER_IDENTITY_FILES_H_
#define NIBBLE_CLIENT_CLUSTER_IDENTITY_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/identity/expiry.h"

namespace nibble {

struct IdentityWish {
  std::vector<std::string> workers, clients;
  // Names and addresses of all machines, for clients that compare the host of a server, as grpcurl
  // does; the programs of Nibble do not.
  std::vector<std::string> hosts;
  int days = 365;        // validity, from an hour ago
  bool missing = false;  // leave certificates that exist
};

// Uses the authority in the directory if there is one. Returns the names of what was issued, such
// as "coordinator". InvalidArgument: a name or host is not allowed.
absl::StatusOr<std::vector<std::string>> IssueIdentityFiles(const std::string& directory,
                                                            const IdentityWish& wish,
                                                            int64_t now_unix_s);

// When the certificates in the directory expire, by name, such as "coordinator" and "ca". Files
// that are no certificates are left out.
std::vector<CertificateExpiry> ReadIdentityExpiries(const std::string& directory);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_IDENTITY_FILES_H_
