// How `nibble` proves who its user is: certificates for the connection, and a token for each call.
//
// Ownership: values. Thread-safety: reads the environment and files, as getenv does.
#ifndef NIBBLE_CLIENT_REMOTE_CLIENT_ACCESS_H_
#define NIBBLE_CLIENT_REMOTE_CLIENT_ACCESS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/shell/command_line.h"

namespace nibble {

class Credentials;

struct ClientAccess {
  std::shared_ptr<const Credentials> credentials;  // null: no TLS
  std::string token;                               // empty: none. Never printed
};

// Files of a local cluster that was started with --secure, below its directory.
struct LocalIdentity {
  explicit LocalIdentity(const std::string& cluster_directory)
      : directory(cluster_directory + "/identity") {}

  const std::string directory;

  std::string Authority() const { return directory + "/ca.pem"; }
  std::string Certificate(const std::string& name) const { return directory + "/" + name + ".pem"; }
  std::string Key(const std::string& name) const { return directory + "/" + name + "-key.pem"; }
  std::string Token() const { return directory + "/token"; }
  std::string AlertToken() const { return directory + "/alerts-token"; }  // of Prometheus
};
inline constexpr char kClientIdentity[] = "client";

// That of the local cluster in the directory; empty if it was not started with --secure.
absl::StatusOr<ClientAccess> LocalAccess(const std::string& cluster_directory);

// From the flags; else, each by itself, from NIBBLE_TLS_CERT, NIBBLE_TLS_KEY, NIBBLE_TLS_CA, and
// from NIBBLE_TOKEN or the file NIBBLE_TOKEN_FILE; else, if `server` is the local cluster, from its
// directory. FailedPrecondition: a file cannot be used, or a token would be sent to another machine
// without TLS.
absl::StatusOr<ClientAccess> FindAccess(const RemoteFlags& flags, const std::string& server);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_CLIENT_ACCESS_H_
