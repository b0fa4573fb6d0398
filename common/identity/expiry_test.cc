#include "common/identity/expiry.h"

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/files/files.h"
#include "common/files/files_testing.h"
#include "common/identity/certificates.h"
#include "common/identity/credentials.h"
#include "common/identity/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kExpiryHour = 3600;
constexpr int64_t kExpiryDay = 24 * kExpiryHour;

class ExpiryTest : public testing::Test {
 protected:
  TlsFiles Issue(int64_t valid_s) {
    return authority_.Issue("node-1", {PeerKind::kWorker, "node-1"}, valid_s);
  }

  const int64_t now_ = absl::ToUnixSeconds(absl::Now());
  const file_testing::TempDirectory directory_;
  const TestAuthority authority_{directory_.path(), "lab"};
};

TEST_F(ExpiryTest, AProgramsOwnCertificateAndItsAuthorityExpire) {
  const TlsFiles files = Issue(9 * kExpiryDay);
  const auto credentials = Credentials::Make(files);
  ASSERT_EQ(credentials.status(), absl::OkStatus());
  const std::vector<CertificateExpiry> expiries = (*credentials)->Expiries();
  ASSERT_EQ(expiries.size(), 2u);
  EXPECT_EQ(expiries[0].certificate, "own");
  EXPECT_EQ(expiries[0].path, files.certificate);
  EXPECT_NEAR(static_cast<double>(expiries[0].unix_s), static_cast<double>(now_ + 9 * kExpiryDay),
              60);
  EXPECT_EQ(expiries[1].certificate, "authority");
  EXPECT_EQ(expiries[1].path, files.authority);
  EXPECT_TRUE(Credentials::Insecure()->Expiries().empty());
  // Of the files as they are now.
  Issue(kExpiryDay);
  EXPECT_LT((*credentials)->Expiries()[0].unix_s, expiries[0].unix_s);
}

TEST_F(ExpiryTest, OfSeveralCertificatesInAFileTheFirstToExpireCounts) {
  const std::string late = *ReadWholeFile(Issue(9 * kExpiryDay).certificate, 1 << 20);
  const std::string early = *ReadWholeFile(Issue(2 * kExpiryDay).certificate, 1 << 20);
  for (const std::string& bundle : {late + early, early + late}) {
    std::ofstream(directory_.Path("bundle.pem")) << bundle;
    const auto expiry = ReadExpiry("authority", directory_.Path("bundle.pem"));
    ASSERT_EQ(expiry.status(), absl::OkStatus());
    EXPECT_LT(expiry->unix_s, now_ + 3 * kExpiryDay);
  }
  std::ofstream(directory_.Path("bundle.pem")) << "no certificate";
  EXPECT_THAT(std::string(ReadExpiry("own", directory_.Path("bundle.pem")).status().message()),
              HasSubstr("bundle.pem': it has no certificate in PEM"));
}

TEST_F(ExpiryTest, ACertificateMayHaveExpiredAtTheStartOfUnixTime) {
  const auto old = MakeAuthority("old", {.from = -kExpiryDay, .until = 0});
  ASSERT_EQ(old.status(), absl::OkStatus());
  std::ofstream(directory_.Path("old.pem")) << old->certificate;
  const auto expiry = ReadExpiry("authority", directory_.Path("old.pem"));
  ASSERT_EQ(expiry.status(), absl::OkStatus());
  EXPECT_EQ(expiry->unix_s, 0);
}

TEST_F(ExpiryTest, TheTextSaysWhen) {
  const CertificateExpiry expiry = {"own", "/etc/node-1.pem", 1'777'629'600};
  const auto text = [&](int64_t left) { return ExpiryText(expiry, expiry.unix_s - left); };
  EXPECT_EQ(text(9 * kExpiryDay + 5),
            "the certificate '/etc/node-1.pem' expires in 9 days, at 2026-05-01T10:00:00Z");
  EXPECT_THAT(text(kExpiryDay + kExpiryHour), HasSubstr("expires in 25 hours, at"));
  EXPECT_THAT(text(kExpiryHour), HasSubstr("expires in 1 hour, at"));
  EXPECT_THAT(text(1), HasSubstr("expires in less than an hour, at"));
  EXPECT_THAT(text(0), HasSubstr("expired at 2026-05-01T10:00:00Z"));
}

TEST_F(ExpiryTest, TheLogNamesACertificateOnceADayUntilItIsRenewed) {
  const TlsFiles files = Issue(13 * kExpiryDay + kExpiryHour);
  std::vector<std::string> lines;
  ExpiryWarnings warnings(*Credentials::Make(files),
                          [&](const std::string& line) { lines.push_back(line); });
  // The authority of the tests is valid for a day or more; its lines are not counted.
  const auto own = [&] {
    std::vector<std::string> of_own;
    for (const std::string& line : lines) {
      if (line.find(files.certificate) != std::string::npos) of_own.push_back(line);
    }
    return of_own;
  };
  for (int64_t at = now_; at < now_ + 2 * kExpiryDay; at += kExpiryHour / 2) warnings.Tick(at);
  EXPECT_THAT(own(), ElementsAre(HasSubstr("expires in 13 days"), HasSubstr("expires in 12 days")));
  EXPECT_THAT(own()[0], HasSubstr("; renew it, no restart is needed"));
  lines.clear();
  Issue(90 * kExpiryDay);
  for (int64_t at = now_ + 3 * kExpiryDay; at < now_ + 5 * kExpiryDay; at += kExpiryHour) {
    warnings.Tick(at);
  }
  EXPECT_THAT(own(), ElementsAre());
  // One that expires soon again is named at once.
  Issue(6 * kExpiryDay);
  warnings.Tick(now_ + 5 * kExpiryDay);
  EXPECT_THAT(own(), ElementsAre(StartsWith("the certificate '")));
}

}  // namespace
}  // namespace nibble
