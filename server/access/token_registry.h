// The bearer tokens that a coordinator has made, in a file of its store's directory.
//
// A token is "nibble_" and 32 random bytes in base64url. Only its SHA-256 is stored: whoever reads
// the file, or a backup of it, cannot use the tokens, and 256 random bits cannot be guessed, so no
// slow hash is needed. Tokens are not entities of the journal: a restored backup of the state must
// not bring revoked tokens back (docs/decisions/0029-who-may-do-what.md).
//
// Expiry is a time on this machine's wall clock, by which it also was chosen.
//
// Ownership: owns the tokens; the file is read once and replaced with every change.
// Thread-safety: all methods.
#ifndef NIBBLE_SERVER_ACCESS_TOKEN_REGISTRY_H_
#define NIBBLE_SERVER_ACCESS_TOKEN_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"
#include "proto/nibble/v1/access.pb.h"

namespace nibble {

inline constexpr char kTokenPrefix[] = "nibble_";
inline constexpr size_t kMaxTokens = 10'000;  // revoked and expired ones included
inline constexpr size_t kMaxTokenProjects = 64;

// SHA-256 of a text, 32 bytes.
std::string Sha256(absl::string_view text);

class TokenRegistry {
 public:
  // Reads the file, or begins without tokens if there is none. `most`: tokens that it keeps.
  // DataLoss: the file is damaged.
  static absl::StatusOr<std::unique_ptr<TokenRegistry>> Open(std::string path,
                                                             size_t most = kMaxTokens);

  // The statuses of CreateToken. Forgets revoked and expired tokens, oldest first, if there is no
  // room.
  absl::StatusOr<v1::Token> Create(const v1::CreateTokenRequest& request, const std::string& author,
                                   int64_t now_unix_ms);
  // The statuses of RevokeToken.
  absl::StatusOr<v1::Token> Revoke(const std::string& id, const std::string& author,
                                   int64_t now_unix_ms);
  // By time of creation.
  std::vector<v1::Token> List() const;

  // The token with this text. Unauthenticated: there is none, or it is expired or revoked; the
  // message names it by its id.
  absl::StatusOr<v1::Token> Find(absl::string_view text, int64_t now_unix_ms) const;
  // As Find, for the id of a token that was found before.
  absl::Status CheckValid(const std::string& id, int64_t now_unix_ms) const;

 private:
  struct Stored {
    v1::Token token;
    std::string hash;  // SHA-256 of the text
  };
  using Tokens = std::map<std::string, Stored>;  // by id

  TokenRegistry(std::string path, size_t most) : path_(std::move(path)), most_(most) {}
  absl::Status Load();
  // Writes the file; on success these are the tokens.
  absl::Status Replace(Tokens tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_);

  const std::string path_;
  const size_t most_;
  // Serialises changes. Held while the file is written, which no other call waits for.
  Mutex change_ ABSL_ACQUIRED_BEFORE(mutex_);
  mutable Mutex mutex_;
  Tokens tokens_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_ACCESS_TOKEN_REGISTRY_H_
