#include "common/identity/credentials.h"

#include <sys/stat.h>

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/files/files.h"
#include "common/identity/certificates.h"
#include "common/status_macros.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace nibble {
namespace {

namespace tls = grpc::experimental;

// Changed files are used after at most this time.
constexpr unsigned kReadAgainSeconds = 1;
constexpr size_t kMaxPemBytes = size_t{1} << 20;

const char* KindText(PeerKind kind) {
  switch (kind) {
    case PeerKind::kCoordinator:
      return "a coordinator";
    case PeerKind::kWorker:
      return "a worker";
    case PeerKind::kClient:
      return "a client";
    case PeerKind::kUnnamed:
      break;
  }
  return "unnamed";
}

// Accepts servers whose certificate names a peer of one kind; gRPC has verified the certificate's
// chain and dates before.
class KindVerifier : public tls::ExternalCertificateVerifier {
 public:
  explicit KindVerifier(PeerKind kind) : kind_(kind) {}
  ~KindVerifier() override = default;

  bool Verify(tls::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* status) override {
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names()) {
      uris.emplace_back(uri.data(), uri.size());
    }
    const absl::StatusOr<PeerName> peer = PeerOfUris(uris);
    if (!peer.ok()) {
      *status = {grpc::StatusCode::UNAUTHENTICATED, std::string(peer.status().message())};
    } else if (peer->kind != kind_) {
      *status = {grpc::StatusCode::UNAUTHENTICATED,
                 absl::StrCat("certificate: it names ", peer->ToString(), ", which is not ",
                              KindText(kind_))};
    } else {
      *status = grpc::Status::OK;
    }
    return true;
  }

  void Cancel(tls::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const PeerKind kind_;
};

// Refuses calls that MayCall refuses, before a handler sees them.
class CallGate : public grpc::AuthMetadataProcessor {
 public:
  explicit CallGate(MayCall may_call) : may_call_(std::move(may_call)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* /*consumed*/, OutputMetadata* /*response*/) override {
    const absl::StatusOr<PeerName> peer = PeerOfCall(*context);
    absl::Status status = peer.status();
    const auto path = metadata.find(":path");
    if (status.ok() && path == metadata.end()) {
      status = absl::UnauthenticatedError("the call has no path");
    }
    if (status.ok()) status = may_call_(*peer, {path->second.data(), path->second.size()});
    if (status.ok()) return grpc::Status::OK;
    const bool unnamed = absl::IsInvalidArgument(status);
    return {
        unnamed ? grpc::StatusCode::UNAUTHENTICATED : static_cast<grpc::StatusCode>(status.code()),
        std::string(status.message())};
  }

 private:
  const MayCall may_call_;
};

class InsecureCredentials : public Credentials {
 public:
  InsecureCredentials() : Credentials(false, {}) {}
  std::string OwnExpiry(int64_t /*now_unix_s*/) const override { return ""; }
  std::vector<CertificateExpiry> Expiries() const override { return {}; }
  std::shared_ptr<grpc::ChannelCredentials> ForChannelTo(PeerKind /*kind*/) const override {
    return grpc::InsecureChannelCredentials();
  }
  std::shared_ptr<grpc::ServerCredentials> ForServer(MayCall /*may_call*/) const override {
    return grpc::InsecureServerCredentials();
  }
};

class TlsCredentials : public Credentials {
 public:
  TlsCredentials(const TlsFiles& files, PeerName own_name)
      : Credentials(true, std::move(own_name)),
        certificate_(files.certificate),
        authority_(files.authority),
        provider_(std::make_shared<tls::FileWatcherCertificateProvider>(
            files.key, files.certificate, files.authority, kReadAgainSeconds)),
        to_coordinator_(MakeForChannelTo(PeerKind::kCoordinator)),
        to_workers_(MakeForChannelTo(PeerKind::kWorker)) {}

  std::string OwnExpiry(int64_t now_unix_s) const override {
    const absl::StatusOr<std::string> pem = ReadWholeFile(certificate_, kMaxPemBytes);
    if (!pem.ok()) return std::string(pem.status().message());
    const absl::StatusOr<CertificateFacts> facts = ReadCertificate(*pem);
    if (!facts.ok()) return absl::StrCat("'", certificate_, "': ", facts.status().message());
    if (facts->expires_unix_s > now_unix_s) return "";
    return absl::StrCat(
        "the certificate '", certificate_, "' expired at ",
        absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(facts->expires_unix_s),
                         absl::UTCTimeZone()),
        "; renew it, no restart is needed");
  }

  std::vector<CertificateExpiry> Expiries() const override {
    std::vector<CertificateExpiry> expiries;
    for (auto& read : {ReadExpiry("own", certificate_), ReadExpiry("authority", authority_)}) {
      if (read.ok()) expiries.push_back(*read);
    }
    return expiries;
  }

  std::shared_ptr<grpc::ChannelCredentials> ForChannelTo(PeerKind kind) const override {
    return kind == PeerKind::kWorker ? to_workers_ : to_coordinator_;
  }

  std::shared_ptr<grpc::ServerCredentials> ForServer(MayCall may_call) const override {
    tls::TlsServerCredentialsOptions options(provider_);
    Watch(options);
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    std::shared_ptr<grpc::ServerCredentials> credentials = tls::TlsServerCredentials(options);
    if (may_call) {
      credentials->SetAuthMetadataProcessor(std::make_shared<CallGate>(std::move(may_call)));
    }
    return credentials;
  }

 private:
  std::shared_ptr<grpc::ChannelCredentials> MakeForChannelTo(PeerKind kind) const {
    tls::TlsChannelCredentialsOptions options;
    Watch(options);
    options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<KindVerifier>(kind));
    options.set_check_call_host(false);
    return tls::TlsCredentials(options);
  }
  void Watch(tls::TlsCredentialsOptions& options) const {
    options.set_certificate_provider(provider_);
    options.watch_root_certs();
    options.watch_identity_key_cert_pairs();
  }

  const std::string certificate_, authority_;  // paths
  // Its thread reads the files again.
  const std::shared_ptr<tls::CertificateProviderInterface> provider_;
  // Made once: a daemon opens channels for as long as it lives.
  const std::shared_ptr<grpc::ChannelCredentials> to_coordinator_, to_workers_;
};

absl::StatusOr<std::string> ReadPem(const char* flag, const std::string& path) {
  absl::StatusOr<std::string> pem = ReadWholeFile(path, kMaxPemBytes);
  if (pem.ok()) return pem;
  return absl::FailedPreconditionError(absl::StrCat(flag, ": ", pem.status().message()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Credentials>> Credentials::Make(const TlsFiles& files) {
  if (!files.given()) return Insecure();
  for (const auto& [flag, path] :
       {std::pair{"--tls-cert", &files.certificate}, std::pair{"--tls-key", &files.key},
        std::pair{"--tls-ca", &files.authority}}) {
    if (!path->empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": not given; TLS needs all of --tls-cert, --tls-key and --tls-ca"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string certificate, ReadPem("--tls-cert", files.certificate));
  NIBBLE_ASSIGN_OR_RETURN(const std::string key, ReadPem("--tls-key", files.key));
  NIBBLE_ASSIGN_OR_RETURN(const std::string authority, ReadPem("--tls-ca", files.authority));
  struct stat entry = {};
  if (stat(files.key.c_str(), &entry) == 0 && (entry.st_mode & S_IRWXO) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--tls-key: '", files.key, "' may be read or written by every user; run 'chmod 600'"));
  }
  const absl::StatusOr<CertificateFacts> own = ReadCertificate(certificate);
  if (!own.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--tls-cert: '", files.certificate, "': ", own.status().message()));
  }
  absl::Status status = CheckKeyFits(certificate, key);
  if (!status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--tls-key: '", files.key, "': ", status.message()));
  }
  status = ReadCertificate(authority).status();
  if (!status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--tls-ca: '", files.authority, "': ", status.message()));
  }
  absl::StatusOr<PeerName> name = PeerOfUris(own->uris);
  if (!name.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--tls-cert: '", files.certificate, "': ", name.status().message()));
  }
  return std::make_shared<const TlsCredentials>(files, *std::move(name));
}

std::shared_ptr<const Credentials> Credentials::Insecure() {
  return std::make_shared<const InsecureCredentials>();
}

absl::StatusOr<PeerName> PeerOfCall(const grpc::AuthContext& context) {
  if (!context.IsPeerAuthenticated()) return PeerName{};
  std::vector<std::string> uris;
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    uris.emplace_back(uri.data(), uri.size());
  }
  return PeerOfUris(uris);
}

int64_t PeerExpiryUnixMs(const grpc::AuthContext& context) {
  for (const grpc::string_ref& pem : context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME)) {
    const auto facts = ReadCertificate(std::string(pem.data(), pem.size()));
    if (facts.ok()) return facts->expires_unix_s * 1000;
  }
  return 0;
}

}  // namespace nibble
