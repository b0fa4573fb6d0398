// Certificates: issued for development and tests, and read to check files before they are used.
//
// An authority issues certificates for ECDSA P-256 keys that it makes; each has one name of
// peer_name.h, and the host names at which foreign clients reach a server.
//
// Ownership: values. Thread-safety: pure functions, apart from OpenSSL's random numbers.
#ifndef NIBBLE_COMMON_IDENTITY_CERTIFICATES_H_
#define NIBBLE_COMMON_IDENTITY_CERTIFICATES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/identity/peer_name.h"

namespace nibble {

// PEM texts.
struct KeyedCertificate {
  std::string certificate;
  std::string key;
};

// Seconds since 1970.
struct Validity {
  int64_t from = 0;
  int64_t until = 0;
};

// A self-signed certificate that may sign others, none of which may sign further ones.
absl::StatusOr<KeyedCertificate> MakeAuthority(const std::string& common_name,
                                               const Validity& validity);

// A certificate for both roles, of a client and of a server. `hosts`: names and IP addresses.
absl::StatusOr<KeyedCertificate> IssueCertificate(const KeyedCertificate& authority,
                                                  const PeerName& peer,
                                                  const std::vector<std::string>& hosts,
                                                  const Validity& validity);

struct CertificateFacts {
  std::vector<std::string> uris;  // among its alternative names
  int64_t expires_unix_s = 0;     // seconds since 1970
};

// Of the first certificate of a PEM text. InvalidArgument: there is none.
absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& pem);

// InvalidArgument unless the private key belongs to the first certificate.
absl::Status CheckKeyFits(const std::string& certificate, const std::string& key);

}  // namespace nibble

#endif  // NIBBLE_COMMON_IDENTITY_CERTIFICATES_H_
