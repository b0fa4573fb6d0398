// When certificates expire, and the words and times of warnings about it.
//
// Ownership: values; ExpiryWarnings shares the credentials. Thread-safety: pure functions, except
// that ReadExpiry reads a file; ExpiryWarnings: one thread at a time.
#ifndef NIBBLE_COMMON_IDENTITY_EXPIRY_H_
#define NIBBLE_COMMON_IDENTITY_EXPIRY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/metrics/program_table.h"

namespace nibble {

// A certificate that expires within this time is warned about, each day. The alerts of
// deploy/prometheus/rules have the same bound.
inline constexpr int64_t kExpiresSoonSeconds = int64_t{14} * 24 * 3600;

struct CertificateExpiry {
  std::string certificate;  // what it is: "own" or "authority" of a program, or a file's name
  std::string path;
  int64_t unix_s = 0;  // seconds since 1970
};

// Of the first to expire of the certificates in the PEM file: a certificate with intermediate ones,
// or several authorities.
absl::StatusOr<CertificateExpiry> ReadExpiry(const std::string& certificate,
                                             const std::string& path);

inline bool ExpiresSoon(const CertificateExpiry& expiry, int64_t now_unix_s) {
  return expiry.unix_s - now_unix_s < kExpiresSoonSeconds;
}

// "the certificate '/etc/nibble/node-1.pem' expires in 9 days, at 2026-05-01T10:00:00Z", or
// "… expired at …".
std::string ExpiryText(const CertificateExpiry& expiry, int64_t now_unix_s);

class Credentials;

// For the metrics of a program with these credentials; null: it has none.
CertificateTimes CertificateTimesOf(std::shared_ptr<const Credentials> credentials);

// Logs each certificate of a program that expires soon, once a day until it is renewed.
class ExpiryWarnings {
 public:
  // `credentials`: null: none.
  ExpiryWarnings(std::shared_ptr<const Credentials> credentials,
                 std::function<void(const std::string& line)> log)
      : credentials_(std::move(credentials)), log_(std::move(log)) {}

  // To be called often; reads the files once a minute.
  void Tick(int64_t now_unix_s);

 private:
  const std::shared_ptr<const Credentials> credentials_;
  const std::function<void(const std::string&)> log_;
  int64_t looked_unix_s_ = 0;
  std::map<std::string, int64_t> warned_unix_s_;  // by path
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_IDENTITY_EXPIRY_H_
