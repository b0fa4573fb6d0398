#include "server/notify/allow_list.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nibble {
namespace {

constexpr int kV4Bits = 32, kV6Bits = 128, kMappedBits = kV6Bits - kV4Bits;

bool SameBits(const IpAddress& a, const IpAddress& b, int bits) {
  const int whole = bits / 8;
  if (!std::equal(a.begin(), a.begin() + whole, b.begin())) return false;
  if (bits % 8 == 0) return true;
  const int mask = 0xff << (8 - bits % 8) & 0xff;
  return (a[whole] & mask) == (b[whole] & mask);
}

bool IsIn(const IpAddress& address, const char* network, int bits) {
  const std::optional<IpAddress> base = ParseIp(network);
  const bool v4 = std::strchr(network, ':') == nullptr;
  return base && SameBits(address, *base, v4 ? kMappedBits + bits : bits);
}

// The IPv4 address in four bytes of an IPv6 address.
IpAddress Embedded(const IpAddress& address, int first_byte) {
  IpAddress v4 = *ParseIp("0.0.0.0");
  std::copy_n(address.begin() + first_byte, 4, v4.begin() + 12);
  return v4;
}

std::optional<int> ParseNumber(std::string_view text, int least, int most) {
  int number = 0;
  const bool digits =
      !text.empty() && text.size() <= 5 && std::all_of(text.begin(), text.end(), [](char c) {
        return absl::ascii_isdigit(static_cast<unsigned char>(c));
      });
  if (!digits || !absl::SimpleAtoi(std::string(text), &number)) return std::nullopt;
  if (number < least || number > most) return std::nullopt;
  return number;
}

}  // namespace

std::optional<IpAddress> ParseIp(std::string_view text) {
  const std::string copy(text);
  IpAddress address = {};
  if (inet_pton(AF_INET6, copy.c_str(), address.data()) == 1) return address;
  if (inet_pton(AF_INET, copy.c_str(), address.data() + 12) != 1) return std::nullopt;
  address[10] = address[11] = 0xff;
  return address;
}

std::string IpText(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const bool v4 = IsIn(address, "0.0.0.0", 0);
  inet_ntop(v4 ? AF_INET : AF_INET6, address.data() + (v4 ? 12 : 0), text, sizeof(text));
  return text;
}

bool IsPublic(const IpAddress& address) {
  struct Network {
    const char* address;
    int bits;
  };
  if (IsIn(address, "0.0.0.0", 0)) {
    constexpr Network kOthers[] = {{"0.0.0.0", 8},     {"10.0.0.0", 8},      {"100.64.0.0", 10},
                                   {"127.0.0.0", 8},   {"169.254.0.0", 16},  {"172.16.0.0", 12},
                                   {"192.0.0.0", 24},  {"192.0.2.0", 24},    {"192.168.0.0", 16},
                                   {"198.18.0.0", 15}, {"198.51.100.0", 24}, {"203.0.113.0", 24},
                                   {"224.0.0.0", 4},   {"240.0.0.0", 4}};
    return std::none_of(std::begin(kOthers), std::end(kOthers), [&address](const Network& other) {
      return IsIn(address, other.address, other.bits);
    });
  }
  if (IsIn(address, "64:ff9b::", 96)) return IsPublic(Embedded(address, 12));
  if (IsIn(address, "2002::", 16)) return IsPublic(Embedded(address, 2));
  return IsIn(address, "2000::", 3) && !IsIn(address, "2001::", 23) &&
         !IsIn(address, "2001:db8::", 32);
}

bool AllowList::Range::Contains(const IpAddress& other) const {
  return SameBits(address, other, bits);
}

bool AllowList::Pattern::Matches(const NotifyUrl& url) const {
  if (port != 0 && port != url.port) return false;
  const std::optional<IpAddress> literal = ParseIp(url.host);
  switch (kind) {
    case Kind::kAny:
      return true;
    case Kind::kBelow:
      return !literal && url.host.size() > name.size() && url.host.ends_with(name);
    case Kind::kName:
      return url.host == name;
    case Kind::kRange:
      return literal && range->Contains(*literal);
  }
  return false;
}

std::optional<AllowList::Range> AllowList::ParseRange(std::string_view text) {
  const size_t slash = std::min(text.find('/'), text.size());
  const std::optional<IpAddress> address = ParseIp(text.substr(0, slash));
  if (!address) return std::nullopt;
  const bool v4 = text.substr(0, slash).find(':') == std::string_view::npos;
  Range range = {.address = *address, .bits = kV6Bits};
  if (slash == text.size()) return range;
  const auto bits = ParseNumber(text.substr(slash + 1), 0, v4 ? kV4Bits : kV6Bits);
  if (!bits) return std::nullopt;
  range.bits = v4 ? kMappedBits + *bits : *bits;
  return range;
}

std::optional<AllowList::Pattern> AllowList::ParsePattern(std::string_view text) {
  Pattern pattern;
  std::string_view host = text;
  if (const size_t equals = text.find('='); equals != std::string_view::npos) {
    pattern.range = ParseRange(text.substr(equals + 1));
    if (!pattern.range) return std::nullopt;
    host = text.substr(0, equals);
  }
  // A bare IPv6 address has more than one colon, and no port.
  const size_t bracket = host.find(']');
  const size_t colon = host.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon != std::string_view::npos &&
      (bracket != std::string_view::npos || host.find(':', colon + 1) == std::string_view::npos)) {
    const auto port = ParseNumber(host.substr(colon + 1), 1, 65'535);
    if (!port) return std::nullopt;
    pattern.port = *port;
    host = host.substr(0, colon);
  }
  std::string name = absl::AsciiStrToLower(std::string(host));
  if (name.starts_with('[') && bracket != std::string_view::npos) {
    name.erase(bracket, 1);
    name.erase(0, 1);
  }
  if (const auto range = ParseRange(name)) {
    if (pattern.range) return std::nullopt;
    pattern.kind = Pattern::Kind::kRange;
    pattern.range = range;
    return pattern;
  }
  if (name == "*") {
    pattern.kind = Pattern::Kind::kAny;
    return pattern;
  }
  const bool below = name.starts_with("*.");
  pattern.kind = below ? Pattern::Kind::kBelow : Pattern::Kind::kName;
  pattern.name = below ? name.substr(1) : name;
  if (!IsHost(below ? name.substr(2) : name) || IsIpAddress(name)) return std::nullopt;
  return pattern;
}

absl::StatusOr<AllowList> AllowList::Parse(const std::vector<std::string>& patterns) {
  AllowList list;
  for (const std::string& text : patterns) {
    const std::optional<Pattern> pattern = ParsePattern(text);
    if (!pattern) {
      return absl::InvalidArgumentError(
          absl::StrCat("--notify-allow: '", text,
                       "' is not HOST[:PORT][=ADDRESS[/BITS]], where HOST is a name, "
                       "*.NAME, * or ADDRESS[/BITS]"));
    }
    list.patterns_.push_back(*pattern);
  }
  if (!patterns.empty()) list.text_ = absl::StrJoin(patterns, ", ");
  return list;
}

absl::Status AllowList::MayPost(const NotifyUrl& url) const {
  for (const Pattern& pattern : patterns_) {
    if (pattern.Matches(url)) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the coordinator may not post to ", url.Origin(), "; its --notify-allow names ", text_));
}

absl::Status AllowList::MayPost(const std::string& url) const {
  const absl::StatusOr<NotifyUrl> parsed = ParseNotifyUrl(url);
  return parsed.ok() ? MayPost(*parsed) : parsed.status();
}

bool AllowList::MayConnect(const NotifyUrl& url, const IpAddress& address) const {
  return std::any_of(patterns_.begin(), patterns_.end(), [&](const Pattern& pattern) {
    if (!pattern.Matches(url)) return false;
    if (pattern.range) return pattern.range->Contains(address);
    const bool local = pattern.kind == Pattern::Kind::kName && pattern.name == "localhost";
    const bool loopback = IsIn(address, "127.0.0.0", 8) || IsIn(address, "::1", kV6Bits);
    return IsPublic(address) || (local && loopback);
  });
}

}  // namespace nibble
