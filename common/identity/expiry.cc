#include "common/identity/expiry.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/files/files.h"
#include "common/identity/certificates.h"
#include "common/identity/credentials.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr char kPemBegin[] = "-----BEGIN CERTIFICATE-----";
constexpr int64_t kMaxBundleBytes = 1 << 20;
constexpr int64_t kLookSeconds = 60;
constexpr int64_t kWarnSeconds = int64_t{24} * 3600;

// "9 days", "5 hours".
std::string LeftText(int64_t seconds) {
  constexpr int64_t kHour = 3600;
  constexpr int64_t kDay = 24 * kHour;
  const int64_t count = seconds >= 2 * kDay ? seconds / kDay : seconds / kHour;
  const char* const unit = seconds >= 2 * kDay ? "day" : "hour";
  return count == 0 ? "less than an hour" : absl::StrCat(count, " ", unit, count == 1 ? "" : "s");
}

}  // namespace

absl::StatusOr<CertificateExpiry> ReadExpiry(const std::string& certificate,
                                             const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string pem, ReadWholeFile(path, kMaxBundleBytes));
  CertificateExpiry expiry = {.certificate = certificate, .path = path};
  size_t at = pem.find(kPemBegin);
  for (bool first = true; first || at != std::string::npos; at = pem.find(kPemBegin, at + 1)) {
    const absl::StatusOr<CertificateFacts> facts =
        ReadCertificate(at == std::string::npos ? pem : pem.substr(at));
    if (!facts.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", path, "': ", std::string(facts.status().message())));
    }
    if (std::exchange(first, false) || facts->expires_unix_s < expiry.unix_s) {
      expiry.unix_s = facts->expires_unix_s;
    }
  }
  return expiry;
}

std::string ExpiryText(const CertificateExpiry& expiry, int64_t now_unix_s) {
  const int64_t left = expiry.unix_s - now_unix_s;
  return absl::StrCat(
      "the certificate '", expiry.path, "' ",
      left > 0 ? absl::StrCat("expires in ", LeftText(left), ", at ") : "expired at ",
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(expiry.unix_s),
                       absl::UTCTimeZone()));
}

CertificateTimes CertificateTimesOf(std::shared_ptr<const Credentials> credentials) {
  return [credentials = std::move(credentials)] {
    std::vector<CertificateTime> times;
    if (credentials == nullptr) return times;
    for (const CertificateExpiry& expiry : credentials->Expiries()) {
      times.push_back({expiry.certificate, static_cast<double>(expiry.unix_s)});
    }
    return times;
  };
}

void ExpiryWarnings::Tick(int64_t now_unix_s) {
  // A clock that was set back does not end the warnings.
  if (credentials_ == nullptr) return;
  if (looked_unix_s_ > 0 && std::abs(now_unix_s - looked_unix_s_) < kLookSeconds) return;
  looked_unix_s_ = now_unix_s;
  for (const CertificateExpiry& expiry : credentials_->Expiries()) {
    if (!ExpiresSoon(expiry, now_unix_s)) {
      warned_unix_s_.erase(expiry.path);
      continue;
    }
    const auto [warned, is_new] = warned_unix_s_.try_emplace(expiry.path, now_unix_s);
    if (!is_new && std::abs(now_unix_s - warned->second) < kWarnSeconds) continue;
    warned->second = now_unix_s;
    log_(absl::StrCat(ExpiryText(expiry, now_unix_s), "; renew it, no restart is needed"));
  }
}

}  // namespace nibble
