// Certificates in files, for tests.
//
// Ownership: files stay in the directory, which the caller removes. Thread-safety: none.
#ifndef NIBBLE_COMMON_IDENTITY_TESTING_H_
#define NIBBLE_COMMON_IDENTITY_TESTING_H_

#include <cstdint>
#include <string>

#include "common/identity/certificates.h"
#include "common/identity/credentials.h"

namespace nibble {

// An authority with a directory for the certificates that it issues. Failures end the test.
class TestAuthority {
 public:
  // Writes NAME-ca.pem.
  TestAuthority(std::string directory, std::string name);

  // Files NAME.pem and NAME-key.pem with a certificate for `peer`, valid from an hour ago (or
  // earlier) until `valid_s` from now, which may be negative. Replaces them if they exist.
  TlsFiles Issue(const std::string& name, const PeerName& peer, int64_t valid_s = 3600) const;

 private:
  const std::string directory_;
  const std::string name_;
  KeyedCertificate authority_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_IDENTITY_TESTING_H_
