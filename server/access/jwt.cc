#include "server/access/jwt.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/params.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/identity/peer_name.h"
#include "common/openssl/owned.h"
#include "common/status_macros.h"
#include "server/access/access_table.h"
#include "server/access/token_registry.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxJwtBytes = 8192;
constexpr size_t kCoordinateBytes = 32;  // of P-256
constexpr int kLeastRsaBits = 2048;
constexpr size_t kMaxKeyIdBytes = 100;
// With # and a `sub` the name fits wherever the author of a change is stored.
constexpr size_t kMaxIssuerBytes = 99;
// Numbers of a token beyond this are no times.
constexpr double kMaxSeconds = 1e11;

using PublicKey = Owned<EVP_PKEY, EVP_PKEY_free>;
using Number = Owned<BIGNUM, BN_free>;

absl::Status Refused(absl::string_view why) {
  return absl::UnauthenticatedError(absl::StrCat("JWT: ", why));
}

// False unless the text is base64url without padding.
bool DecodePart(absl::string_view text, std::string& bytes) {
  return !absl::StrContains(text, '=') && absl::WebSafeBase64Unescape(text, &bytes);
}

// The string member; empty if there is none.
std::string TextMember(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

bool DecodeMember(const Json& object, const char* name, std::string& bytes) {
  const std::string text = TextMember(object, name);
  return !text.empty() && DecodePart(text, bytes) && !bytes.empty();
}

PublicKey MakePublicKey(const char* type, OSSL_PARAM_BLD* build) {
  const Owned<OSSL_PARAM, OSSL_PARAM_free> parameters(OSSL_PARAM_BLD_to_param(build));
  const Owned<EVP_PKEY_CTX, EVP_PKEY_CTX_free> context(
      EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr));
  EVP_PKEY* key = nullptr;
  if (parameters != nullptr && context != nullptr && EVP_PKEY_fromdata_init(context.get()) == 1 &&
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, parameters.get()) != 1) {
    key = nullptr;
  }
  ERR_clear_error();
  return PublicKey(key);
}

using ParamBuild = Owned<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free>;

PublicKey RsaKey(const Json& jwk) {
  std::string modulus, exponent;
  if (!DecodeMember(jwk, "n", modulus) || !DecodeMember(jwk, "e", exponent)) return nullptr;
  const auto number = [](const std::string& bytes) {
    return Number(BN_bin2bn(reinterpret_cast<const unsigned char*>(bytes.data()),
                            static_cast<int>(bytes.size()), nullptr));
  };
  const Number n = number(modulus), e = number(exponent);
  const ParamBuild build(OSSL_PARAM_BLD_new());
  if (n == nullptr || e == nullptr || build == nullptr || BN_num_bits(n.get()) < kLeastRsaBits ||
      OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_RSA_N, n.get()) != 1 ||
      OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_RSA_E, e.get()) != 1) {
    return nullptr;
  }
  return MakePublicKey("RSA", build.get());
}

PublicKey EcKey(const Json& jwk) {
  std::string x, y;
  if (TextMember(jwk, "crv") != "P-256" || !DecodeMember(jwk, "x", x) ||
      !DecodeMember(jwk, "y", y) || x.size() != kCoordinateBytes || y.size() != kCoordinateBytes) {
    return nullptr;
  }
  const std::string point = absl::StrCat("\x04", x, y);  // uncompressed
  const ParamBuild build(OSSL_PARAM_BLD_new());
  if (build == nullptr ||
      OSSL_PARAM_BLD_push_utf8_string(build.get(), OSSL_PKEY_PARAM_GROUP_NAME, "P-256", 0) != 1 ||
      OSSL_PARAM_BLD_push_octet_string(build.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                       point.size()) != 1) {
    return nullptr;
  }
  return MakePublicKey("EC", build.get());
}

// A JWT has r and s of fixed size; OpenSSL takes ASN.1. Empty if it is no such signature.
std::string DerOf(const std::string& raw) {
  if (raw.size() != 2 * kCoordinateBytes) return "";
  const auto* const bytes = reinterpret_cast<const unsigned char*>(raw.data());
  Number r(BN_bin2bn(bytes, kCoordinateBytes, nullptr));
  Number s(BN_bin2bn(bytes + kCoordinateBytes, kCoordinateBytes, nullptr));
  const Owned<ECDSA_SIG, ECDSA_SIG_free> signature(ECDSA_SIG_new());
  if (r == nullptr || s == nullptr || signature == nullptr ||
      ECDSA_SIG_set0(signature.get(), r.get(), s.get()) != 1) {
    return "";
  }
  (void)r.release();  // the signature's now
  (void)s.release();
  unsigned char* der = nullptr;
  const int size = i2d_ECDSA_SIG(signature.get(), &der);
  if (size <= 0) return "";
  std::string text(reinterpret_cast<const char*>(der), static_cast<size_t>(size));
  OPENSSL_free(der);
  return text;
}

bool VerifySignature(EVP_PKEY* key, absl::string_view text, const std::string& signature) {
  const Owned<EVP_MD_CTX, EVP_MD_CTX_free> context(EVP_MD_CTX_new());
  const bool good =
      context != nullptr &&
      EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, key) == 1 &&
      EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                       signature.size(), reinterpret_cast<const unsigned char*>(text.data()),
                       text.size()) == 1;
  ERR_clear_error();
  return good;
}

bool IsPrintable(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

// The time in seconds. False if the claim is present and no such number.
bool ReadSeconds(const Json& claims, const char* name, bool& present, double& seconds) {
  const auto found = claims.find(name);
  present = found != claims.end();
  if (!present) return true;
  if (!found->is_number()) return false;
  seconds = found->get<double>();
  return std::isfinite(seconds) && std::abs(seconds) < kMaxSeconds;
}

absl::StatusOr<int64_t> CheckTimes(const Json& claims, int64_t leeway_s, int64_t now_unix_ms) {
  const double now = static_cast<double>(now_unix_ms) / 1000;
  const auto leeway = static_cast<double>(leeway_s);
  bool expires = false, delayed = false;
  double until = 0, from = 0;
  if (!ReadSeconds(claims, "exp", expires, until) || !ReadSeconds(claims, "nbf", delayed, from)) {
    return Refused("exp or nbf is no time");
  }
  if (!expires) return Refused("it has no exp; only tokens that expire are accepted");
  if (now >= until + leeway) return Refused("it has expired");
  if (delayed && now < from - leeway) return Refused("it is not valid yet (nbf)");
  return static_cast<int64_t>((until + leeway) * 1000);
}

bool HasAudience(const Json& claims, const std::string& wanted) {
  const auto found = claims.find("aud");
  if (found == claims.end()) return false;
  if (found->is_string()) return found->get<std::string>() == wanted;
  return found->is_array() && std::find(found->begin(), found->end(), Json(wanted)) != found->end();
}

v1::Role RoleOfClaim(const Json& claim) {
  if (claim.is_string()) return RoleOfText(claim.get<std::string>());
  v1::Role highest = v1::ROLE_UNSPECIFIED;
  if (!claim.is_array()) return highest;
  for (const Json& one : claim) {
    const v1::Role role = one.is_string() ? RoleOfText(one.get<std::string>()) : highest;
    // A token of people is never that of a worker.
    if (role != v1::ROLE_WORKER) highest = std::max(highest, role);
  }
  return highest;
}

// False unless the claim is a name, or a list of one and more names: a bound that is not understood
// must not become no bound.
bool ReadProjects(const Json& claim, std::vector<std::string>& projects) {
  const Json list = claim.is_array() ? claim : Json::array({claim});
  for (const Json& one : list) {
    if (!one.is_string() || !CheckIdentityName("project", one.get<std::string>()).ok()) {
      return false;
    }
    projects.push_back(one.get<std::string>());
  }
  return !projects.empty() && projects.size() <= kMaxTokenProjects;
}

}  // namespace

struct KeySet::Key {
  std::string id;         // `kid`; empty: none
  std::string algorithm;  // RS256 or ES256
  PublicKey key;
};

KeySet::KeySet() = default;
KeySet::~KeySet() = default;

absl::StatusOr<std::shared_ptr<const KeySet>> KeySet::Parse(absl::string_view jwks) {
  const Json json = Json::parse(jwks, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("keys") || !json["keys"].is_array()) {
    return absl::InvalidArgumentError("JWKS: not a JSON object with a list of keys");
  }
  std::shared_ptr<KeySet> set(new KeySet);
  for (const Json& jwk : json["keys"]) {
    if (!jwk.is_object() || (jwk.contains("use") && TextMember(jwk, "use") != "sig")) continue;
    const bool rsa = TextMember(jwk, "kty") == "RSA";
    auto key = std::make_unique<Key>();
    key->algorithm = rsa ? "RS256" : "ES256";
    if (jwk.contains("alg") && TextMember(jwk, "alg") != key->algorithm) continue;
    if (!rsa && TextMember(jwk, "kty") != "EC") continue;
    key->key = rsa ? RsaKey(jwk) : EcKey(jwk);
    if (key->key == nullptr) continue;
    key->id = TextMember(jwk, "kid");
    set->keys_.push_back(std::move(key));
  }
  if (set->keys_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "JWKS: none of its ", json["keys"].size(), " keys is usable; allowed: RSA of at least ",
        kLeastRsaBits, " bits for RS256, EC P-256 for ES256"));
  }
  return std::shared_ptr<const KeySet>(std::move(set));
}

bool LooksLikeJwt(absl::string_view token) {
  return std::count(token.begin(), token.end(), '.') == 2;
}

absl::StatusOr<JwtHolder> KeySet::Check(absl::string_view token, const JwtRules& rules,
                                        int64_t now_unix_ms) const {
  if (token.size() > kMaxJwtBytes) return Refused("it is too long");
  const std::vector<absl::string_view> parts = absl::StrSplit(token, '.');
  std::string head_text, claims_text, signature;
  if (parts.size() != 3 || !DecodePart(parts[0], head_text) || !DecodePart(parts[1], claims_text) ||
      !DecodePart(parts[2], signature)) {
    return Refused("it is not three parts of base64url");
  }
  const Json head = Json::parse(head_text, nullptr, /*allow_exceptions=*/false);
  if (!head.is_object()) return Refused("its header is not JSON");
  // Extensions that must be understood, none of which is known here.
  if (head.contains("crit")) return Refused("its header has crit");
  const std::string algorithm = TextMember(head, "alg");
  const std::string id = TextMember(head, "kid");
  const Key* key = nullptr;
  for (const auto& one : keys_) {
    if (one->algorithm != algorithm || (!id.empty() && one->id != id)) continue;
    if (key != nullptr) return Refused("it names no key, and several would fit");
    key = one.get();
  }
  if (key == nullptr) {
    const bool printable = id.size() <= kMaxKeyIdBytes && IsPrintable(id);
    return Refused(absl::StrCat("no key ", printable ? id : "", id.empty() ? "" : " ",
                                "of its algorithm is known; allowed: RS256 and ES256 with a key of "
                                "the JWKS file"));
  }
  const absl::string_view signed_text = token.substr(0, parts[0].size() + 1 + parts[1].size());
  if (key->algorithm == "ES256") signature = DerOf(signature);
  if (!VerifySignature(key->key.get(), signed_text, signature)) {
    return Refused("its signature is wrong");
  }
  const Json claims = Json::parse(claims_text, nullptr, /*allow_exceptions=*/false);
  if (!claims.is_object()) return Refused("its claims are not JSON");
  JwtHolder holder;
  NIBBLE_ASSIGN_OR_RETURN(holder.expires_unix_ms, CheckTimes(claims, rules.leeway_s, now_unix_ms));
  if (!rules.issuer.empty() && TextMember(claims, "iss") != rules.issuer) {
    return Refused(absl::StrCat("iss is not '", rules.issuer, "'"));
  }
  if (!rules.audience.empty() && !HasAudience(claims, rules.audience)) {
    return Refused(absl::StrCat("aud does not have '", rules.audience, "'"));
  }
  holder.name = TextMember(claims, "sub");
  if (const absl::Status fits = CheckCallerName("sub", holder.name); !fits.ok()) {
    return Refused(fits.message());
  }
  const std::string issuer = TextMember(claims, "iss");
  if (issuer.empty() || issuer.size() > kMaxIssuerBytes || !IsPrintable(issuer)) {
    return Refused(absl::StrCat("iss, which belongs to the name, is no text of 1 to ",
                                kMaxIssuerBytes, " printable characters without blanks"));
  }
  const auto role = claims.find(rules.role_claim);
  if (role != claims.end()) holder.role = RoleOfClaim(*role);
  if (holder.role != v1::ROLE_WORKER) holder.name = absl::StrCat(issuer, "#", holder.name);
  const auto project = claims.find(rules.project_claim);
  if (project != claims.end() && !ReadProjects(*project, holder.projects)) {
    return Refused(absl::StrCat(rules.project_claim, " is neither a project nor a list of 1 to ",
                                kMaxTokenProjects));
  }
  return holder;
}

}  // namespace nibble
