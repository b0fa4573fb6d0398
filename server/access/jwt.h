// Signed tokens of an identity provider: JSON Web Tokens (RFC 7519) with RS256 or ES256, checked
// against the public keys of a local JWKS file (RFC 7517).
//
// The algorithm follows from the key, and a token that names another one is refused: neither "none"
// nor a public key used as an HMAC secret is ever accepted. A token must expire.
//
// Ownership: a KeySet owns its keys. Thread-safety: const methods of KeySet; functions are pure.
#ifndef NIBBLE_SERVER_ACCESS_JWT_H_
#define NIBBLE_SERVER_ACCESS_JWT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/nibble/v1/access.pb.h"

namespace nibble {

struct JwtRules {
  std::string issuer;                      // required `iss`; empty: any
  std::string audience;                    // required in `aud`; empty: any
  std::string role_claim = "nibble_role";  // a role, or a list of which the highest counts
  // The claim that bounds changes to a project, or to a list of them; a token without it has none.
  std::string project_claim = "nibble_project";
  int64_t leeway_s = 60;  // between this clock and the issuer's
};

struct JwtHolder {
  // Of people ISSUER#SUB, which no token's name is; of workers `sub`.
  std::string name;
  v1::Role role = v1::ROLE_UNSPECIFIED;
  int64_t expires_unix_ms = 0;  // with the leeway
  std::vector<std::string> projects;
};

// Public keys.
class KeySet {
 public:
  // InvalidArgument: it is no JWKS, or has no usable key. Keys of other kinds, and keys for
  // encryption, are skipped.
  static absl::StatusOr<std::shared_ptr<const KeySet>> Parse(absl::string_view jwks);
  ~KeySet();
  KeySet(const KeySet&) = delete;
  KeySet& operator=(const KeySet&) = delete;

  // Checks signature, times, issuer and audience. Unauthenticated states which of them is wrong,
  // and repeats no part of the token but its key id.
  absl::StatusOr<JwtHolder> Check(absl::string_view token, const JwtRules& rules,
                                  int64_t now_unix_ms) const;

 private:
  struct Key;
  KeySet();
  std::vector<std::unique_ptr<Key>> keys_;
};

// Whether a bearer token has the form of a JWT: three parts.
bool LooksLikeJwt(absl::string_view token);

}  // namespace nibble

#endif  // NIBBLE_SERVER_ACCESS_JWT_H_
