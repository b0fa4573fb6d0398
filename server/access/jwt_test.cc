#include "server/access/jwt.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rsa.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/identity/peer_name.h"
#include "common/openssl/owned.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::HasSubstr;

constexpr int64_t kJwtNowS = 1'700'000'000;
constexpr int64_t kJwtNowMs = kJwtNowS * 1000;

using Signer = Owned<EVP_PKEY, EVP_PKEY_free>;

std::string NumberOf(EVP_PKEY* key, const char* name, int bytes) {
  BIGNUM* number = nullptr;
  EXPECT_EQ(EVP_PKEY_get_bn_param(key, name, &number), 1);
  std::string text(static_cast<size_t>(bytes > 0 ? bytes : BN_num_bytes(number)), '\0');
  BN_bn2binpad(number, reinterpret_cast<unsigned char*>(text.data()),
               static_cast<int>(text.size()));
  BN_free(number);
  return absl::WebSafeBase64Escape(text);
}

class JwtTest : public testing::Test {
 protected:
  JwtTest() : rsa_(EVP_RSA_gen(2048)), ec_(EVP_EC_gen("P-256")), other_(EVP_EC_gen("P-256")) {
    const auto keys = KeySet::Parse(Jwks());
    EXPECT_EQ(keys.status(), absl::OkStatus());
    if (keys.ok()) keys_ = *keys;
  }

  std::string RsaJwk() const {
    return absl::StrCat(R"({"kty":"RSA","kid":"r1","use":"sig","n":")",
                        NumberOf(rsa_.get(), OSSL_PKEY_PARAM_RSA_N, 0), R"(","e":")",
                        NumberOf(rsa_.get(), OSSL_PKEY_PARAM_RSA_E, 0), R"("})");
  }
  std::string Jwks() const {
    return absl::StrCat(R"({"keys":[)", RsaJwk(), R"(,{"kty":"EC","kid":"e1","crv":"P-256","x":")",
                        NumberOf(ec_.get(), OSSL_PKEY_PARAM_EC_PUB_X, 32), R"(","y":")",
                        NumberOf(ec_.get(), OSSL_PKEY_PARAM_EC_PUB_Y, 32),
                        R"("},{"kty":"oct","k":"c2VjcmV0"}]})");
  }

  static std::string Head(const std::string& algorithm, const std::string& kid) {
    return absl::StrCat(R"({"typ":"JWT","alg":")", algorithm, R"(","kid":")", kid, R"("})");
  }
  static std::string Claims(const std::string& more = R"(,"nibble_role":"submitter")",
                            int64_t expires = kJwtNowS + 600) {
    return absl::StrCat(R"({"iss":"https://id.lab","sub":"ann@lab","exp":)", expires, more, "}");
  }

  static std::string Sign(EVP_PKEY* key, const std::string& text) {
    EVP_MD_CTX* const context = EVP_MD_CTX_new();
    size_t size = 0;
    std::string signature;
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
    EXPECT_EQ(EVP_DigestSignInit(context, nullptr, EVP_sha256(), nullptr, key), 1);
    EXPECT_EQ(EVP_DigestSign(context, nullptr, &size, bytes, text.size()), 1);
    signature.resize(size);
    auto* const out = reinterpret_cast<unsigned char*>(signature.data());
    EXPECT_EQ(EVP_DigestSign(context, out, &size, bytes, text.size()), 1);
    signature.resize(size);
    EVP_MD_CTX_free(context);
    if (EVP_PKEY_is_a(key, "RSA") == 1) return signature;
    const unsigned char* at = out;
    ECDSA_SIG* const parsed = d2i_ECDSA_SIG(nullptr, &at, static_cast<long>(size));
    std::string raw(64, '\0');
    BN_bn2binpad(ECDSA_SIG_get0_r(parsed), reinterpret_cast<unsigned char*>(raw.data()), 32);
    BN_bn2binpad(ECDSA_SIG_get0_s(parsed), reinterpret_cast<unsigned char*>(raw.data()) + 32, 32);
    ECDSA_SIG_free(parsed);
    return raw;
  }

  static std::string Unsigned(const std::string& head, const std::string& claims) {
    return absl::StrCat(absl::WebSafeBase64Escape(head), ".", absl::WebSafeBase64Escape(claims));
  }
  static std::string Token(EVP_PKEY* key, const std::string& head, const std::string& claims) {
    const std::string text = Unsigned(head, claims);
    return absl::StrCat(text, ".", absl::WebSafeBase64Escape(Sign(key, text)));
  }
  absl::StatusOr<JwtHolder> Check(const std::string& token, const JwtRules& rules = {}) const {
    return keys_->Check(token, rules, kJwtNowMs);
  }
  std::string Refusal(const std::string& token, const JwtRules& rules = {}) const {
    const absl::Status status = Check(token, rules).status();
    EXPECT_TRUE(status.ok() || absl::IsUnauthenticated(status)) << status;
    return std::string(status.message());
  }

  const Signer rsa_, ec_, other_;
  std::shared_ptr<const KeySet> keys_;
};

TEST_F(JwtTest, BothAlgorithmsGiveNameAndRole) {
  for (const std::string& token : {Token(rsa_.get(), Head("RS256", "r1"), Claims()),
                                   Token(ec_.get(), Head("ES256", "e1"), Claims())}) {
    const auto holder = Check(token);
    ASSERT_EQ(holder.status(), absl::OkStatus());
    EXPECT_EQ(holder->name, "https://id.lab#ann@lab");
    EXPECT_EQ(holder->role, v1::ROLE_SUBMITTER);
    EXPECT_EQ(holder->expires_unix_ms, kJwtNowMs + 660'000);
  }
}

TEST_F(JwtTest, ATokenWithoutASignatureOrWithAnotherAlgorithmIsRefused) {
  EXPECT_THAT(Refusal(Unsigned(Head("none", ""), Claims()) + "."), HasSubstr("allowed: RS256"));
  EXPECT_THAT(Refusal(Unsigned(Head("None", "r1"), Claims()) + "."), HasSubstr("allowed: RS256"));
  // The public key as the secret of an HMAC.
  const std::string text = Unsigned(Head("HS256", "r1"), Claims());
  unsigned char mac[32];
  const std::string secret = RsaJwk();
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac, nullptr);
  EXPECT_THAT(Refusal(absl::StrCat(text, ".",
                                   absl::WebSafeBase64Escape(absl::string_view(
                                       reinterpret_cast<const char*>(mac), sizeof mac)))),
              HasSubstr("allowed: RS256"));
  // The key of the other algorithm.
  EXPECT_THAT(Refusal(Token(ec_.get(), Head("RS256", "e1"), Claims())),
              HasSubstr("allowed: RS256"));
}

TEST_F(JwtTest, AnotherKeyOrOtherClaimsAreRefused) {
  EXPECT_THAT(Refusal(Token(other_.get(), Head("ES256", "e1"), Claims())),
              HasSubstr("signature is wrong"));
  const std::string head = Head("ES256", "e1");
  const std::string good = Token(ec_.get(), head, Claims());
  const std::string forged =
      Unsigned(head, Claims(R"(,"nibble_role":"operator")")) + good.substr(good.rfind('.'));
  EXPECT_THAT(Refusal(forged), HasSubstr("signature is wrong"));
  for (size_t cut : {good.size() - 1, good.size() - 20, good.rfind('.') + 1, good.find('.')}) {
    EXPECT_NE(Refusal(good.substr(0, cut)), "") << cut;
  }
  EXPECT_NE(Refusal(Token(ec_.get(), Head("ES256", "e2"), Claims())), "");
  EXPECT_NE(Refusal(std::string(10'000, 'a') + ".b.c"), "");
}

TEST_F(JwtTest, TimesAreChecked) {
  const std::string head = Head("ES256", "e1");
  const auto sign = [&](const std::string& claims) { return Token(ec_.get(), head, claims); };
  EXPECT_EQ(Refusal(sign(Claims("", kJwtNowS - 59))), "");
  EXPECT_THAT(Refusal(sign(Claims("", kJwtNowS - 60))), HasSubstr("expired"));
  EXPECT_THAT(Refusal(sign(R"({"sub":"ann"})")), HasSubstr("no exp"));
  EXPECT_THAT(Refusal(sign(R"({"sub":"ann","exp":"never"})")), HasSubstr("no time"));
  EXPECT_THAT(Refusal(sign(R"({"sub":"ann","exp":1e300})")), HasSubstr("no time"));
  EXPECT_THAT(Refusal(sign(Claims(absl::StrCat(R"(,"nbf":)", kJwtNowS + 61)))),
              HasSubstr("not valid yet"));
  // The leeway counts at both ends.
  for (const int64_t early : {59, 60}) {
    EXPECT_EQ(Refusal(sign(Claims(absl::StrCat(R"(,"nbf":)", kJwtNowS + early)))), "") << early;
  }
}

TEST_F(JwtTest, IssuerAudienceAndSubjectAreChecked) {
  const std::string head = Head("ES256", "e1");
  const std::string token =
      Token(ec_.get(), head, Claims(R"(,"iss":"https://id.lab","aud":["other","nibble"])"));
  EXPECT_EQ(Refusal(token, {.issuer = "https://id.lab", .audience = "nibble"}), "");
  EXPECT_THAT(Refusal(token, {.issuer = "https://id"}), HasSubstr("iss"));
  EXPECT_THAT(Refusal(token, {.audience = "nib"}), HasSubstr("aud"));
  EXPECT_THAT(Refusal(Token(ec_.get(), head, R"({"sub":"a b","exp":1800000000})")),
              HasSubstr("sub"));
  EXPECT_THAT(Refusal(Token(ec_.get(), head, R"({"exp":1800000000})")), HasSubstr("sub"));
}

TEST_F(JwtTest, TheIssuerBelongsToTheNameOfPeople) {
  const auto token = [&](const std::string& issuer, const std::string& role) {
    return Token(ec_.get(), Head("ES256", "e1"),
                 absl::StrCat(R"({"sub":"ann","exp":)", kJwtNowS + 600, issuer,
                              R"(,"nibble_role":")", role, R"("})"));
  };
  EXPECT_EQ(Check(token(R"(,"iss":"https://a")", "viewer"))->name, "https://a#ann");
  EXPECT_EQ(Check(token(R"(,"iss":"https://b")", "operator"))->name, "https://b#ann");
  // No token has such a name, and a worker's is that of the worker.
  EXPECT_FALSE(CheckIdentityName("name", "https://a#ann").ok());
  EXPECT_EQ(Check(token(R"(,"iss":"https://a")", "worker"))->name, "ann");
  EXPECT_EQ(Refusal(token(absl::StrCat(R"(,"iss":")", std::string(99, 'i'), "\""), "viewer")), "");
  for (const std::string& issuer :
       {std::string(), std::string(R"(,"iss":"")"), std::string(R"(,"iss":7)"),
        std::string(R"(,"iss":"a b")"), absl::StrCat(R"(,"iss":")", std::string(100, 'i'), "\"")}) {
    EXPECT_THAT(Refusal(token(issuer, "viewer")), HasSubstr("iss, which belongs to the name"))
        << issuer;
  }
}

TEST_F(JwtTest, NamesOfTheCoordinatorsOwnAuthorsAreReserved) {
  for (const char* name : {"coordinator", "guard", "bootstrap"}) {
    EXPECT_THAT(Refusal(Token(ec_.get(), Head("ES256", "e1"),
                              absl::StrCat(R"({"iss":"https://a","sub":")", name, R"(","exp":)",
                                           kJwtNowS + 600, "}"))),
                HasSubstr(absl::StrCat("sub: '", name, "' is reserved")));
  }
}

TEST_F(JwtTest, TheHighestRoleOfAListCountsAndNoneOfIt) {
  const auto role = [&](const std::string& claim) {
    return Check(Token(ec_.get(), Head("ES256", "e1"), Claims(claim)))->role;
  };
  EXPECT_EQ(role(R"(,"nibble_role":["viewer","admin","operator"])"), v1::ROLE_OPERATOR);
  EXPECT_EQ(role(R"(,"nibble_role":["viewer","worker"])"), v1::ROLE_VIEWER);
  EXPECT_EQ(role(R"(,"nibble_role":"root")"), v1::ROLE_UNSPECIFIED);
  EXPECT_EQ(role(R"(,"nibble_role":7)"), v1::ROLE_UNSPECIFIED);
  EXPECT_EQ(role(""), v1::ROLE_UNSPECIFIED);
}

TEST_F(JwtTest, ABoundOfProjectsThatIsNotUnderstoodIsNotNoBound) {
  const auto token = [&](const std::string& claim) {
    return Token(ec_.get(), Head("ES256", "e1"), Claims(claim));
  };
  EXPECT_THAT(Check(token(""))->projects, testing::IsEmpty());
  EXPECT_THAT(Check(token(R"(,"nibble_project":"nlp")"))->projects, testing::ElementsAre("nlp"));
  EXPECT_THAT(Check(token(R"(,"nibble_project":["nlp","speech"])"))->projects,
              testing::ElementsAre("nlp", "speech"));
  for (const char* claim : {R"([])", R"(7)", R"(["nlp",7])", R"("../nlp")", R"({})", R"(null)"}) {
    EXPECT_THAT(Refusal(token(absl::StrCat(R"(,"nibble_project":)", claim))),
                HasSubstr("nibble_project is neither"))
        << claim;
  }
}

TEST_F(JwtTest, AHeaderThatMustBeUnderstoodIsRefused) {
  const std::string head = R"({"alg":"ES256","kid":"e1","crit":["exp"]})";
  EXPECT_THAT(Refusal(Token(ec_.get(), head, Claims())), HasSubstr("crit"));
}

TEST_F(JwtTest, ATokenWithoutAKeyIdIsCheckedAgainstTheOnlyKeyOfItsAlgorithm) {
  const std::string head = R"({"alg":"ES256"})";
  EXPECT_EQ(Refusal(Token(ec_.get(), head, Claims())), "");
  const auto jwk = [](EVP_PKEY* key, const std::string& use) {
    return absl::StrCat(R"({"kty":"EC","crv":"P-256","use":")", use, R"(","x":")",
                        NumberOf(key, OSSL_PKEY_PARAM_EC_PUB_X, 32), R"(","y":")",
                        NumberOf(key, OSSL_PKEY_PARAM_EC_PUB_Y, 32), R"("})");
  };
  const auto keys = [&](const std::string& use_of_other) {
    const auto set = KeySet::Parse(absl::StrCat(R"({"keys":[)", jwk(ec_.get(), "sig"), ",",
                                                jwk(other_.get(), use_of_other), "]}"));
    EXPECT_EQ(set.status(), absl::OkStatus());
    return *set;
  };
  const std::string token = Token(ec_.get(), head, Claims());
  EXPECT_THAT(keys("sig")->Check(token, {}, kJwtNowMs).status().message(),
              HasSubstr("it names no key, and several would fit"));
  // A key for encryption is none that would fit.
  EXPECT_EQ(keys("enc")->Check(token, {}, kJwtNowMs).status(), absl::OkStatus());
}

TEST_F(JwtTest, OnlyUsableKeysAreTaken) {
  for (const char* text : {"", "[]", "{}", R"({"keys":7})", R"({"keys":[]})",
                           R"({"keys":[{"kty":"oct","k":"c2VjcmV0"}]})",
                           R"({"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}]})",
                           R"({"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(KeySet::Parse(text).status())) << text;
  }
  // A point that is not on the curve.
  const std::string off(43, 'A');
  EXPECT_FALSE(KeySet::Parse(absl::StrCat(R"({"keys":[{"kty":"EC","crv":"P-256","x":")", off,
                                          R"(","y":")", off, R"("}]})"))
                   .ok());
}

}  // namespace
}  // namespace nibble
