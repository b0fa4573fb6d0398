#include "common/identity/peer_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr char kScheme[] = "nibble://";
constexpr char kAllowedUris[] =
    "nibble://coordinator, nibble://worker/NAME or nibble://client/NAME";

}  // namespace

std::string PeerName::ToString() const {
  switch (kind) {
    case PeerKind::kUnnamed:
      return "unnamed";
    case PeerKind::kCoordinator:
      return absl::StrCat(kScheme, "coordinator");
    case PeerKind::kWorker:
      return absl::StrCat(kScheme, "worker/", name);
    case PeerKind::kClient:
      return absl::StrCat(kScheme, "client/", name);
  }
  return "unnamed";
}

absl::Status CheckIdentityName(absl::string_view field, absl::string_view text) {
  const bool fits = !text.empty() && text.size() <= kMaxIdentityBytes &&
                    absl::ascii_isalnum(static_cast<unsigned char>(text[0])) &&
                    std::all_of(text.begin(), text.end(), [](unsigned char c) {
                      return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '@' || c == '-';
                    });
  if (fits) return absl::OkStatus();
  // The text may be a secret that was given in the wrong place: it is not repeated.
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", text.size(), " bytes; allowed: 1 to ", kMaxIdentityBytes,
                   " of [A-Za-z0-9._@-], beginning with a letter or digit"));
}

absl::StatusOr<PeerName> ParsePeerUri(absl::string_view uri) {
  absl::string_view rest = uri;
  if (absl::ConsumePrefix(&rest, kScheme)) {
    if (rest == "coordinator") return PeerName{PeerKind::kCoordinator, ""};
    const bool worker = absl::ConsumePrefix(&rest, "worker/");
    if (worker || absl::ConsumePrefix(&rest, "client/")) {
      NIBBLE_RETURN_IF_ERROR(CheckIdentityName(uri, rest));
      return PeerName{worker ? PeerKind::kWorker : PeerKind::kClient, std::string(rest)};
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("'", uri, "'; allowed: ", kAllowedUris));
}

absl::StatusOr<PeerName> PeerOfUris(const std::vector<std::string>& uris) {
  const std::string* own = nullptr;
  for (const std::string& uri : uris) {
    if (!absl::StartsWith(uri, kScheme)) continue;
    if (own != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("certificate: it names both '", *own,
                                                     "' and '", uri, "'; allowed: one of them"));
    }
    own = &uri;
  }
  if (own == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "certificate: none of its ", uris.size(), " URI names begins with nibble://; allowed: ",
        kAllowedUris, "; 'nibble cluster certs' issues such certificates"));
  }
  return ParsePeerUri(*own);
}

}  // namespace nibble
