#include "tests/security/secure_coordinator.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>

#include <chrono>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/exposition_testing.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/access.grpc.pb.h"
#include "server/access/authenticator.h"
#include "server/access/token_registry.h"
#include "tests/processes/processes.h"

namespace nibble {
namespace {

constexpr std::chrono::seconds kCallDeadline(60);
constexpr int kCoordinateBytes = 32;  // of P-256

std::string CoordinateOf(EVP_PKEY* key, const char* name) {
  BIGNUM* number = nullptr;
  EXPECT_EQ(EVP_PKEY_get_bn_param(key, name, &number), 1);
  std::string text(kCoordinateBytes, '\0');
  BN_bn2binpad(number, reinterpret_cast<unsigned char*>(text.data()), kCoordinateBytes);
  BN_free(number);
  return absl::WebSafeBase64Escape(text);
}

// r and s of an ES256 signature.
std::string SignatureOf(EVP_PKEY* key, const std::string& text) {
  EVP_MD_CTX* const context = EVP_MD_CTX_new();
  unsigned char der[256];
  size_t size = sizeof der;
  EXPECT_EQ(EVP_DigestSignInit(context, nullptr, EVP_sha256(), nullptr, key), 1);
  EXPECT_EQ(EVP_DigestSign(context, der, &size, reinterpret_cast<const unsigned char*>(text.data()),
                           text.size()),
            1);
  EVP_MD_CTX_free(context);
  const unsigned char* at = der;
  ECDSA_SIG* const signature = d2i_ECDSA_SIG(nullptr, &at, static_cast<long>(size));
  std::string raw(2 * kCoordinateBytes, '\0');
  auto* const out = reinterpret_cast<unsigned char*>(raw.data());
  BN_bn2binpad(ECDSA_SIG_get0_r(signature), out, kCoordinateBytes);
  BN_bn2binpad(ECDSA_SIG_get0_s(signature), out + kCoordinateBytes, kCoordinateBytes);
  ECDSA_SIG_free(signature);
  return raw;
}

}  // namespace

std::unique_ptr<grpc::ClientContext> CallWith(const std::string& token) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + kCallDeadline);
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
  return context;
}

SecureCoordinator::SecureCoordinator(int64_t valid_s, const std::vector<std::string>& more_flags)
    : authority_(directory_.path(), "lab"),
      client_(authority_.Issue("client", {PeerKind::kClient, "cli"})),
      jwt_key_(EVP_EC_gen("P-256")),
      other_key_(EVP_EC_gen("P-256")) {
  authority_.Issue("coordinator", {PeerKind::kCoordinator, ""}, valid_s);
  std::ofstream(Path("jwks.json"))
      << R"({"keys":[{"kty":"EC","crv":"P-256","kid":"k1","x":")"
      << CoordinateOf(jwt_key_, OSSL_PKEY_PARAM_EC_PUB_X) << R"(","y":")"
      << CoordinateOf(jwt_key_, OSSL_PKEY_PARAM_EC_PUB_Y) << R"("}]})";
  Start(more_flags);
}

SecureCoordinator::~SecureCoordinator() {
  EVP_PKEY_free(jwt_key_);
  EVP_PKEY_free(other_key_);
}

void SecureCoordinator::Start(const std::vector<std::string>& more_flags) {
  std::vector<std::string> flags = {"--tls-cert",
                                    Path("coordinator.pem"),
                                    "--tls-key",
                                    Path("coordinator-key.pem"),
                                    "--tls-ca",
                                    Path("lab-ca.pem"),
                                    "--jwks-file",
                                    Path("jwks.json"),
                                    "--jwt-issuer",
                                    "https://id.lab",
                                    "--audit-log",
                                    Path("audit.jsonl"),
                                    "--bootstrap-token-file",
                                    Path("bootstrap")};
  flags.insert(flags.end(), more_flags.begin(), more_flags.end());
  auto started = CoordinatorProcess::Start({.program = CoordinatorProgram(),
                                            .store = Path("store"),
                                            .flags = std::move(flags),
                                            .http = "127.0.0.1:0"});
  ASSERT_EQ(started.status(), absl::OkStatus());
  process_ = *std::move(started);
}

std::shared_ptr<grpc::Channel> SecureCoordinator::Connect(const TlsFiles& files) const {
  const auto credentials = Credentials::Make(files);
  EXPECT_EQ(credentials.status(), absl::OkStatus());
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(process_->address(),
                                   (*credentials)->ForChannelTo(PeerKind::kCoordinator), arguments);
}

std::string SecureCoordinator::Bootstrap() const {
  return std::string(absl::StripAsciiWhitespace(TextOf(Path("bootstrap"))));
}

grpc::Status SecureCoordinator::TryMakeToken(const std::string& caller, const std::string& name,
                                             v1::Role role) {
  v1::CreateTokenRequest request;
  request.set_name(name);
  request.set_role(role);
  request.set_secret_sha256(Sha256(*NewTokenText()));
  v1::CreateTokenResponse made;
  return v1::Access::NewStub(Connect())->CreateToken(CallWith(caller).get(), request, &made);
}

std::string SecureCoordinator::MakeToken(const std::string& name, v1::Role role, int64_t valid_ms,
                                         const std::vector<std::string>& projects) {
  const auto text = NewTokenText();
  EXPECT_EQ(text.status(), absl::OkStatus());
  v1::CreateTokenRequest request;
  request.set_name(name);
  request.set_role(role);
  request.set_valid_ms(valid_ms);
  request.set_secret_sha256(Sha256(*text));
  request.mutable_projects()->Assign(projects.begin(), projects.end());
  v1::CreateTokenResponse made;
  const grpc::Status status =
      v1::Access::NewStub(Connect())->CreateToken(CallWith(Bootstrap()).get(), request, &made);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return *text;
}

void SecureCoordinator::RevokeToken(const std::string& text) {
  v1::RevokeTokenRequest request;
  request.set_id(absl::BytesToHexString(Sha256(text)).substr(0, 12));
  v1::RevokeTokenResponse revoked;
  const grpc::Status status =
      v1::Access::NewStub(Connect())->RevokeToken(CallWith(Bootstrap()).get(), request, &revoked);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

std::string SecureCoordinator::MakeJwt(const std::string& claims, const std::string& algorithm,
                                       bool forged) const {
  const std::string head = absl::StrCat(R"({"alg":")", algorithm, R"(","kid":"k1"})");
  const std::string text =
      absl::StrCat(absl::WebSafeBase64Escape(head), ".", absl::WebSafeBase64Escape(claims));
  if (algorithm == "none") return text + ".";
  return absl::StrCat(text, ".",
                      absl::WebSafeBase64Escape(SignatureOf(forged ? other_key_ : jwt_key_, text)));
}

std::string SecureCoordinator::Metrics() const {
  const auto page = HttpGet(process_->http_port(), "/metrics");
  EXPECT_EQ(page.status(), absl::OkStatus());
  return page.ok() ? *page : "";
}

std::vector<nlohmann::json> SecureCoordinator::Audit() const {
  return ReadEvents(Path("audit.jsonl"));
}

bool SecureCoordinator::Audited(const std::vector<std::string>& values) const {
  for (const nlohmann::json& entry : Audit()) {
    bool matches = true;
    for (size_t i = 0; i + 1 < values.size(); i += 2) {
      matches = matches && entry.value(values[i], "") == values[i + 1];
    }
    if (matches) return true;
  }
  return false;
}

}  // namespace nibble
