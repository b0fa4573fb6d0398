// Who a caller is: from its certificate, and from the bearer token of its call.
//
//   token of the coordinator   the token's name and role (token_registry.h)
//   bootstrap token            "bootstrap", an operator: the one that makes the first tokens
//   JWT                        the claims' issuer, name and role (jwt.h)
//   certificate of a worker    that worker, if the call has no token
//
// A certificate of a client, or none, gives no role by itself. A worker's token on a connection
// with a worker's certificate must be of the same worker.
//
// Ownership: owns its keys and tokens. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_ACCESS_AUTHENTICATOR_H_
#define NIBBLE_SERVER_ACCESS_AUTHENTICATOR_H_

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/identity/peer_name.h"
#include "common/mutex.h"
#include "server/access/jwt.h"
#include "server/access/token_file.h"
#include "server/access/token_registry.h"

namespace nibble {

struct AccessCaller {
  std::string name;  // identity: owner of jobs, author of changes, name of a worker
  v1::Role role = v1::ROLE_UNSPECIFIED;
  std::string proof;            // for the audit log: "token 0123…", "jwt", "certificate", "none"
  std::string token_id;         // of a token of the coordinator; empty: another proof
  int64_t expires_unix_ms = 0;  // of a JWT; 0: never
  // The only projects in which it may change anything, and then only jobs; empty: no such bound.
  std::vector<std::string> projects;
};

class Authenticator {
 public:
  struct Options {
    std::string token_file;      // of TokenRegistry
    std::string bootstrap_file;  // empty: none. If it does not exist it is made, with a new token
    std::string jwks_file;       // empty: no JWTs. Read again when it changes
    JwtRules jwt;
  };

  // FailedPrecondition: a file cannot be read, has no token or key, or its token may be read by
  // others than its owner.
  static absl::StatusOr<std::unique_ptr<Authenticator>> Open(const Options& options);

  // `authorization`: the metadata of that name; empty: none. Unauthenticated: no proof, or it is
  // not valid. PermissionDenied: certificate and token name different workers.
  absl::StatusOr<AccessCaller> Authenticate(const PeerName& peer, absl::string_view authorization,
                                            int64_t now_unix_ms);
  // Whether a caller that was authenticated before still is: its token was neither revoked nor has
  // it expired. For streams that stay open.
  absl::Status CheckStillValid(const AccessCaller& caller, int64_t now_unix_ms) const;

  TokenRegistry& tokens() { return *tokens_; }

 private:
  explicit Authenticator(Options options) : options_(std::move(options)) {}
  absl::Status OpenBootstrap();
  absl::StatusOr<std::shared_ptr<const KeySet>> Keys();
  absl::StatusOr<AccessCaller> CheckBearer(absl::string_view token, int64_t now_unix_ms);

  const Options options_;
  std::unique_ptr<TokenRegistry> tokens_;
  std::string bootstrap_hash_;  // SHA-256; empty: no bootstrap token
  Mutex mutex_;
  std::shared_ptr<const KeySet> keys_ ABSL_GUARDED_BY(mutex_);
  struct stat keys_as_of_ ABSL_GUARDED_BY(mutex_) = {};
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_ACCESS_AUTHENTICATOR_H_
