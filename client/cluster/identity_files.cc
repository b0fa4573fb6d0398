#include "client/cluster/identity_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/remote/client_access.h"
#include "common/files/files.h"
#include "common/files/staged_file.h"
#include "common/identity/certificates.h"
#include "common/identity/peer_name.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr char kAuthorityName[] = "ca";
constexpr int64_t kDaySeconds = 86'400;
constexpr int64_t kHourSeconds = 3600;
constexpr int64_t kAuthorityDays = 3650;
constexpr size_t kMaxPemFileBytes = size_t{1} << 20;

bool Exists(const std::string& path) {
  std::error_code none;
  return std::filesystem::exists(path, none);
}

std::string PemPath(const std::string& directory, const std::string& name) {
  return absl::StrCat(directory, "/", name, ".pem");
}
std::string KeyPath(const std::string& directory, const std::string& name) {
  return absl::StrCat(directory, "/", name, "-key.pem");
}

// The key first: a certificate without its key would not be issued again.
absl::Status WritePair(const std::string& directory, const std::string& name,
                       const KeyedCertificate& pair) {
  const mode_t before = umask(S_IRWXG | S_IRWXO);
  absl::Status status = ReplaceFile(KeyPath(directory, name), pair.key);
  umask(before);
  if (status.ok()) status = ReplaceFile(PemPath(directory, name), pair.certificate);
  return status;
}

absl::StatusOr<KeyedCertificate> OpenAuthority(const std::string& directory, int64_t now_unix_s) {
  if (Exists(PemPath(directory, kAuthorityName))) {
    KeyedCertificate authority;
    NIBBLE_ASSIGN_OR_RETURN(authority.certificate,
                            ReadWholeFile(PemPath(directory, kAuthorityName), kMaxPemFileBytes));
    NIBBLE_ASSIGN_OR_RETURN(authority.key,
                            ReadWholeFile(KeyPath(directory, kAuthorityName), kMaxPemFileBytes));
    return authority;
  }
  NIBBLE_ASSIGN_OR_RETURN(KeyedCertificate authority,
                          MakeAuthority("Nibble development authority",
                                        {.from = now_unix_s - kHourSeconds,
                                         .until = now_unix_s + kAuthorityDays * kDaySeconds}));
  NIBBLE_RETURN_IF_ERROR(WritePair(directory, kAuthorityName, authority));
  return authority;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> IssueIdentityFiles(const std::string& directory,
                                                            const IdentityWish& wish,
                                                            int64_t now_unix_s) {
  std::vector<std::pair<std::string, PeerName>> wanted = {
      {"coordinator", {PeerKind::kCoordinator, ""}}};
  for (const std::string& worker : wish.workers) {
    wanted.push_back({worker, {PeerKind::kWorker, worker}});
  }
  for (const std::string& client : wish.clients) {
    wanted.push_back({client, {PeerKind::kClient, client}});
  }
  for (size_t i = 1; i < wanted.size(); ++i) {
    const std::string& name = wanted[i].first;
    NIBBLE_RETURN_IF_ERROR(CheckIdentityName("name", name));
    bool taken = name == kAuthorityName;
    for (size_t j = 0; j < i; ++j) taken = taken || wanted[j].first == name;
    if (!taken) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("name: '", name, "' is that of another certificate in the directory"));
  }
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(directory));
  NIBBLE_ASSIGN_OR_RETURN(const KeyedCertificate authority, OpenAuthority(directory, now_unix_s));
  const Validity validity = {.from = now_unix_s - kHourSeconds,
                             .until = now_unix_s + wish.days * kDaySeconds};
  std::vector<std::string> issued;
  for (const auto& [name, peer] : wanted) {
    if (wish.missing && Exists(PemPath(directory, name))) continue;
    NIBBLE_ASSIGN_OR_RETURN(const KeyedCertificate made,
                            IssueCertificate(authority, peer, wish.hosts, validity));
    NIBBLE_RETURN_IF_ERROR(WritePair(directory, name, made));
    issued.push_back(name);
  }
  return issued;
}

std::vector<CertificateExpiry> ReadIdentityExpiries(const std::string& directory) {
  std::vector<CertificateExpiry> expiries;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().stem();
    if (at->path().extension() != ".pem" || absl::EndsWith(name, "-key")) continue;
    const absl::StatusOr<CertificateExpiry> expiry = ReadExpiry(name, at->path());
    if (expiry.ok()) expiries.push_back(*expiry);
  }
  std::sort(expiries.begin(), expiries.end(),
            [](const CertificateExpiry& a, const CertificateExpiry& b) {
              return a.certificate < b.certificate;
            });
  return expiries;
}

}  // namespace nibble
