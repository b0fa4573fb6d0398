#include "common/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr size_t kMaxHostBytes = 253;  // of a name in DNS
constexpr size_t kMaxShown = 80;
constexpr absl::string_view kOneInterface = "the address of one interface, not of all";
constexpr absl::string_view kOneHost = "the address of one host, not a multicast address";

// "localhost", and names below it, are loopback by RFC 6761.
bool IsLocalName(absl::string_view host) {
  absl::ConsumeSuffix(&host, ".");
  return absl::EqualsIgnoreCase(host, "localhost") || absl::EndsWithIgnoreCase(host, ".localhost");
}

}  // namespace

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
        absl::StrCat(field, ": '", text, "'; allowed: host:port with a port of 0 to 65535",
                     absl::StrContains(text, "://") ? ", without a scheme such as http://" : ""));
  }
  address.host = std::string(host);
  address.loopback = host == "localhost" || host == "::1" ||
                     (absl::StartsWith(host, "127.") &&
                      host.find_first_not_of("0123456789.") == absl::string_view::npos);
  address.any = host == "0.0.0.0" || host == "::";
  return address;
}

absl::StatusOr<ListenAddress> ParseNamedAddress(absl::string_view field, absl::string_view text) {
  const auto refused = [field, text](absl::string_view allowed) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ": '", absl::CHexEscape(text.substr(0, kMaxShown)), "'; allowed: ", allowed));
  };
  constexpr absl::string_view kAllowed =
      "host:port at which others reach it, of a host name or IP address and a port of 1 to 65535";
  absl::StatusOr<ListenAddress> address = ParseListenAddress(field, text);
  if (!address.ok() || address->port == 0) return refused(kAllowed);
  const std::string& host = address->host;
  in6_addr six = {};
  in_addr four = {};
  if (absl::StrContains(host, ":")) {
    if (inet_pton(AF_INET6, host.c_str(), &six) != 1) return refused(kAllowed);
    address->any = IN6_IS_ADDR_UNSPECIFIED(&six);
    address->loopback = IN6_IS_ADDR_LOOPBACK(&six);
    address->link_local = IN6_IS_ADDR_LINKLOCAL(&six);
    if (IN6_IS_ADDR_MULTICAST(&six)) return refused(kOneHost);
    if (!IN6_IS_ADDR_V4MAPPED(&six)) return address->any ? refused(kOneInterface) : address;
    std::memcpy(&four, six.s6_addr + 12, sizeof four);
  } else if (inet_aton(host.c_str(), &four) != 0) {
    // Not "0" or "0x7f.1", which resolvers take for addresses, too.
    if (inet_pton(AF_INET, host.c_str(), &four) != 1) return refused(kAllowed);
  } else {
    const bool name = host.size() <= kMaxHostBytes && absl::ascii_isalnum(host[0]) &&
                      std::all_of(host.begin(), host.end(), [](unsigned char c) {
                        return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
                      });
    if (!name) return refused(kAllowed);
    address->loopback = IsLocalName(host);
    return address;
  }
  const uint32_t number = ntohl(four.s_addr);
  address->any = number >> 24 == 0;
  address->loopback = number >> 24 == 127;
  address->link_local = number >> 16 == 0xa9fe;  // 169.254
  if (number >> 28 == 0xe || number == 0xffffffff) return refused(kOneHost);
  return address->any ? refused(kOneInterface) : address;
}

absl::Status CheckListenAddress(absl::string_view field, absl::string_view text, bool insecure) {
  NIBBLE_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(field, text));
  if (address.loopback || insecure) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(field, ": '", address.host,
                   "' is not loopback, and callers are not authenticated; listen on a loopback "
                   "address, or allow it with --insecure"));
}

}  // namespace nibble
