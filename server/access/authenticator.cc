#include "server/access/authenticator.h"

#include <openssl/crypto.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/files/files.h"
#include "common/status_macros.h"
#include "server/access/access_table.h"
#include "server/access/token_file.h"

namespace nibble {
namespace {

constexpr char kScheme[] = "bearer ";
constexpr size_t kMaxSmallFileBytes = size_t{1} << 20;

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Authenticator>> Authenticator::Open(const Options& options) {
  std::unique_ptr<Authenticator> made(new Authenticator(options));
  NIBBLE_ASSIGN_OR_RETURN(made->tokens_, TokenRegistry::Open(options.token_file));
  if (!options.bootstrap_file.empty()) NIBBLE_RETURN_IF_ERROR(made->OpenBootstrap());
  if (!options.jwks_file.empty()) NIBBLE_RETURN_IF_ERROR(made->Keys().status());
  return made;
}

absl::Status Authenticator::OpenBootstrap() {
  NIBBLE_ASSIGN_OR_RETURN(const std::string token,
                          ReadOrMakeToken("--bootstrap-token-file", options_.bootstrap_file));
  bootstrap_hash_ = Sha256(token);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const KeySet>> Authenticator::Keys() {
  const MutexLock lock(&mutex_);
  struct stat now = {};
  const bool exists = stat(options_.jwks_file.c_str(), &now) == 0;
  if (keys_ != nullptr && (!exists || SameFile(now, keys_as_of_))) return keys_;
  const auto refused = [this](const absl::Status& why) {
    return absl::FailedPreconditionError(
        absl::StrCat("--jwks-file: '", options_.jwks_file, "': ", why.message()));
  };
  const absl::StatusOr<std::string> text = ReadWholeFile(options_.jwks_file, kMaxSmallFileBytes);
  auto keys = text.ok() ? KeySet::Parse(*text)
                        : absl::StatusOr<std::shared_ptr<const KeySet>>(text.status());
  if (keys.ok()) {
    keys_ = *std::move(keys);
    keys_as_of_ = now;
  } else if (keys_ == nullptr) {
    return refused(keys.status());
  }
  // A file that is being replaced does not end the validity of the keys before.
  return keys_;
}

absl::StatusOr<AccessCaller> Authenticator::CheckBearer(absl::string_view token,
                                                        int64_t now_unix_ms) {
  const std::string hash = Sha256(token);
  if (!bootstrap_hash_.empty() &&
      CRYPTO_memcmp(hash.data(), bootstrap_hash_.data(), hash.size()) == 0) {
    return AccessCaller{.name = kBootstrapName, .role = v1::ROLE_OPERATOR, .proof = "bootstrap"};
  }
  if (absl::StartsWith(token, kTokenPrefix)) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::Token found, tokens_->Find(token, now_unix_ms));
    // Earlier versions made tokens of any name.
    if (const absl::Status fits = CheckCallerName("name", found.name()); !fits.ok()) {
      return absl::UnauthenticatedError(
          absl::StrCat("token ", found.id(), ": ", fits.message(), "; make another"));
    }
    return AccessCaller{.name = found.name(),
                        .role = found.role(),
                        .proof = absl::StrCat("token ", found.id()),
                        .token_id = found.id(),
                        .projects = {found.projects().begin(), found.projects().end()}};
  }
  if (!options_.jwks_file.empty() && LooksLikeJwt(token)) {
    NIBBLE_ASSIGN_OR_RETURN(const auto keys, Keys());
    NIBBLE_ASSIGN_OR_RETURN(JwtHolder holder, keys->Check(token, options_.jwt, now_unix_ms));
    if (holder.role == v1::ROLE_UNSPECIFIED) {
      return absl::UnauthenticatedError(
          absl::StrCat("JWT: its claim '", options_.jwt.role_claim,
                       "' has no role; allowed: viewer, submitter, operator, worker"));
    }
    return AccessCaller{.name = std::move(holder.name),
                        .role = holder.role,
                        .proof = "jwt",
                        .expires_unix_ms = holder.expires_unix_ms,
                        .projects = std::move(holder.projects)};
  }
  return absl::UnauthenticatedError("token: this coordinator has no such token");
}

absl::StatusOr<AccessCaller> Authenticator::Authenticate(const PeerName& peer,
                                                         absl::string_view authorization,
                                                         int64_t now_unix_ms) {
  if (authorization.empty()) {
    if (peer.kind == PeerKind::kWorker) {
      return AccessCaller{.name = peer.name, .role = v1::ROLE_WORKER, .proof = "certificate"};
    }
    return absl::UnauthenticatedError(
        "the call has no token: give one with --token-file or NIBBLE_TOKEN; an operator makes "
        "them with 'nibble token create'");
  }
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) {
    return absl::UnauthenticatedError("authorization: not 'Bearer TOKEN'");
  }
  authorization.remove_prefix(sizeof(kScheme) - 1);
  NIBBLE_ASSIGN_OR_RETURN(AccessCaller caller,
                          CheckBearer(absl::StripAsciiWhitespace(authorization), now_unix_ms));
  if (caller.role == v1::ROLE_WORKER && peer.kind != PeerKind::kUnnamed &&
      peer != PeerName{PeerKind::kWorker, caller.name}) {
    return absl::PermissionDeniedError(absl::StrCat("the token is of worker ", caller.name,
                                                    " and the certificate of ", peer.ToString()));
  }
  return caller;
}

absl::Status Authenticator::CheckStillValid(const AccessCaller& caller, int64_t now_unix_ms) const {
  if (!caller.token_id.empty()) return tokens_->CheckValid(caller.token_id, now_unix_ms);
  if (caller.expires_unix_ms > 0 && now_unix_ms >= caller.expires_unix_ms) {
    return absl::UnauthenticatedError("JWT: it has expired");
  }
  return absl::OkStatus();
}

}  // namespace nibble
