// The credentials of all gRPC channels and servers of a program: the only place that makes any.
//
// With certificates every connection is mutually authenticated TLS: both sides present a
// certificate of the same authority, and a client accepts a server only if the certificate names
// what it wants to reach, a coordinator or a worker (peer_name.h). Host names of certificates are
// not compared: machines change their addresses, and a name in the cluster is what is trusted.
// Files are read again when they change; open connections keep the certificates of their handshake.
//
// Without certificates connections are neither encrypted nor authenticated.
//
// Ownership: shared; channels and servers keep what they need. Thread-safety: all methods.
#ifndef NIBBLE_COMMON_IDENTITY_CREDENTIALS_H_
#define NIBBLE_COMMON_IDENTITY_CREDENTIALS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/identity/expiry.h"
#include "common/identity/peer_name.h"

namespace grpc {
class AuthContext;
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace nibble {

// Paths of PEM files. One trio serves for both roles, of a client and of a server.
struct TlsFiles {
  std::string certificate;  // --tls-cert: this program's, followed by intermediate ones
  std::string key;          // --tls-key
  std::string authority;    // --tls-ca: certificates of the authorities that sign those of others

  bool given() const { return !certificate.empty() || !key.empty() || !authority.empty(); }
};

// Whether the peer may make this call, such as "/nibble.v1.ShardStore/ReadShard". Called for each
// call, from gRPC's threads.
using MayCall = std::function<absl::Status(const PeerName& peer, absl::string_view call)>;

class Credentials {
 public:
  // Without files: no TLS. InvalidArgument: one of the three is missing. FailedPrecondition: a file
  // cannot be read, the key is not the certificate's, or the key's file may be read by everybody.
  static absl::StatusOr<std::shared_ptr<const Credentials>> Make(const TlsFiles& files);
  // As Make({}).
  static std::shared_ptr<const Credentials> Insecure();

  virtual ~Credentials() = default;

  bool secure() const { return secure_; }
  // The name in this program's certificate; kUnnamed without certificates.
  const PeerName& own_name() const { return own_name_; }
  // For messages about connections that fail, because the peer that refuses a certificate does not
  // say why: that this program's certificate, as its file is now, has expired. Empty: it has not.
  virtual std::string OwnExpiry(int64_t now_unix_s) const = 0;
  // Of this program's certificate, "own", and of its authorities, "authority", as their files are
  // now. Without files that cannot be read.
  virtual std::vector<CertificateExpiry> Expiries() const = 0;
  // For channels to a server whose certificate names a `kind`: kCoordinator or kWorker.
  virtual std::shared_ptr<grpc::ChannelCredentials> ForChannelTo(PeerKind kind) const = 0;
  // `may_call` may be null: every caller with a certificate may make every call. Without
  // certificates it is not asked.
  virtual std::shared_ptr<grpc::ServerCredentials> ForServer(MayCall may_call = nullptr) const = 0;

 protected:
  Credentials(bool secure, PeerName own_name) : secure_(secure), own_name_(std::move(own_name)) {}

 private:
  const bool secure_;
  const PeerName own_name_;
};

// The name in the certificate of a call's peer; kUnnamed if the connection is not encrypted. The
// errors of PeerOfUris.
absl::StatusOr<PeerName> PeerOfCall(const grpc::AuthContext& context);

// When that certificate expires, milliseconds since 1970; 0 if the connection is not encrypted, or
// the certificate cannot be read.
int64_t PeerExpiryUnixMs(const grpc::AuthContext& context);

}  // namespace nibble

#endif  // NIBBLE_COMMON_IDENTITY_CREDENTIALS_H_
