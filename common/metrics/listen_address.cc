#include "common/metrics/listen_address.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace nibble {

std::string ListenAddress::ToString() const {
  const bool six = host.find(':') != std::string::npos;
  return absl::StrCat(six ? "[" : "", host, six ? "]:" : ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view field, absl::string_view text) {
  ListenAddress address;
  const size_t colon = text.rfind(':');
  absl::string_view host = text.substr(0, colon);
  const bool bracketed = absl::ConsumePrefix(&host, "[");
  const bool closed = absl::ConsumeSuffix(&host, "]");
  if (colon == absl::string_view::npos || host.empty() || bracketed != closed ||
      (!bracketed && absl::StrContains(host, ":")) ||
      !absl::SimpleAtoi(text.substr(colon + 1), &address.port) || address.port < 0 ||
      address.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": '", text, "'; allowed: host:port with a port of 0 to 65535"));
  }
  address.host = std::string(host);
  address.loopback = host == "localhost" || host == "::1" ||
                     (absl::StartsWith(host, "127.") &&
                      host.find_first_not_of("0123456789.") == absl::string_view::npos);
  address.any = host == "0.0.0.0" || host == "::";
  return address;
}

absl::Status CheckListenAddress(absl::string_view field, absl::string_view text, bool insecure) {
  const absl::StatusOr<ListenAddress> address = ParseListenAddress(field, text);
  if (!address.ok()) return address.status();
  if (address->loopback || insecure) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(field, ": '", address->host,
                   "' is not loopback, and callers are not authenticated; "
                   "--insecure says that this is meant"));
}

}  // namespace nibble
