// The URLs to which the coordinator may post events of jobs, from --notify-allow. Everybody who may
// submit a job chooses URLs, so without this list a job could make the coordinator connect to any
// host in its reach (server-side request forgery).
//
// MayPost checks a URL, at submission and before each post. MayConnect checks each address that the
// URL's host resolves to, right before the connection: an allowed name must not lead to loopback or
// a private network unnoticed.
//
// Thread-safety: const.
#ifndef NIBBLE_SERVER_NOTIFY_ALLOW_LIST_H_
#define NIBBLE_SERVER_NOTIFY_ALLOW_LIST_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/notify_url.h"

namespace nibble {

// An IPv6 address, or an IPv4 address in its IPv6 form (::ffff:a.b.c.d).
using IpAddress = std::array<uint8_t, 16>;

// Unset: not an address.
std::optional<IpAddress> ParseIp(std::string_view text);
std::string IpText(const IpAddress& address);
// Whether the address is a public one: not loopback, link-local, private, shared, multicast or
// reserved, including IPv6 addresses that stand for such IPv4 addresses.
bool IsPublic(const IpAddress& address);

class AllowList {
 public:
  // Allows nothing.
  AllowList() = default;

  // A pattern is HOST[:PORT][=ADDRESS[/BITS]]. HOST is a name, *.NAME for every name below it, *
  // for every host, or ADDRESS[/BITS] (an IPv6 address before a port in []). Without PORT every
  // port matches. Names may resolve to public addresses only, unless = gives other ones;
  // "localhost" may resolve to loopback. InvalidArgument naming the pattern.
  static absl::StatusOr<AllowList> Parse(const std::vector<std::string>& patterns);

  // FailedPrecondition naming the host and the flag.
  absl::Status MayPost(const NotifyUrl& url) const;
  absl::Status MayPost(const std::string& url) const;
  // For a URL that passed MayPost.
  bool MayConnect(const NotifyUrl& url, const IpAddress& address) const;

 private:
  struct Range {
    IpAddress address = {};
    int bits = 0;
    bool Contains(const IpAddress& other) const;
  };
  struct Pattern {
    enum class Kind : uint8_t { kAny, kBelow, kName, kRange };
    Kind kind = Kind::kName;
    std::string name;            // of kBelow (with the first '.') and kName
    int port = 0;                // 0: every port
    std::optional<Range> range;  // of kRange; otherwise where names may resolve to
    bool Matches(const NotifyUrl& url) const;
  };

  static std::optional<Range> ParseRange(std::string_view text);
  static std::optional<Pattern> ParsePattern(std::string_view text);

  std::vector<Pattern> patterns_;
  std::string text_ = "nothing";
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_ALLOW_LIST_H_
