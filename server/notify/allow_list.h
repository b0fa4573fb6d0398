// Where the coordinator may post events of jobs: what an operator names with --notify-allow. Anyone
// who may submit a job writes URLs, so without this list a job could make the coordinator connect
// to whatever it reaches (server-side request forgery).
//
// Two questions are asked. MayPost, of a URL, at submission and before each post. MayConnect, of
// each address that the URL's host resolves to, right before it is connected to: a name that an
// operator allows must not lead to loopback or a private network behind their back.
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

// Unset for what is no address.
std::optional<IpAddress> ParseIp(std::string_view text);
std::string IpText(const IpAddress& address);
// Of a host on the internet: not loopback, link-local, private, shared, multicast or reserved, also
// where an IPv6 address stands for such an IPv4 address.
bool IsPublic(const IpAddress& address);

class AllowList {
 public:
  // Nothing is allowed.
  AllowList() = default;

  // A pattern is HOST[:PORT][=ADDRESS[/BITS]]. HOST is a name, *.NAME for every name below it, *
  // for every host, or ADDRESS[/BITS] (an IPv6 address before a port in []). Without PORT every
  // port is meant. Names lead to public addresses only, unless = says where they lead instead;
  // "localhost" leads to loopback. InvalidArgument naming the pattern.
  static absl::StatusOr<AllowList> Parse(const std::vector<std::string>& patterns);

  // FailedPrecondition naming the host and the flag.
  absl::Status MayPost(const NotifyUrl& url) const;
  absl::Status MayPost(const std::string& url) const;
  // Of a URL that may be posted to.
  bool MayConnect(const NotifyUrl& url, const IpAddress& address) const;

 private:
  struct Range {
    IpAddress address = {};
    int bits = 0;
    bool Holds(const IpAddress& other) const;
  };
  struct Pattern {
    enum class Kind : uint8_t { kAny, kBelow, kName, kRange };
    Kind kind = Kind::kName;
    std::string name;            // of kBelow (with the first '.') and kName
    int port = 0;                // 0: every port
    std::optional<Range> range;  // of kRange; of others, where names lead
    bool Matches(const NotifyUrl& url) const;
  };

  static std::optional<Range> ParseRange(std::string_view text);
  static std::optional<Pattern> ParsePattern(std::string_view text);

  std::vector<Pattern> patterns_;
  std::string text_ = "nothing";
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_ALLOW_LIST_H_
