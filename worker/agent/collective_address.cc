#include "worker/agent/collective_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nibble {
namespace {

struct InterfaceAddress {
  std::string interface, address;
};

// IPv4 addresses of interfaces that are up, in the system's order.
absl::StatusOr<std::vector<InterfaceAddress>> InterfaceAddresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return absl::InternalError(absl::StrCat("--collectives: interfaces: ", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    if (one->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN] = {};
    const auto& four = reinterpret_cast<const sockaddr_in&>(*one->ifa_addr);
    inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
    found.push_back({one->ifa_name, text});
  }
  return found;
}

}  // namespace

absl::StatusOr<CollectiveAddress> FindCollectiveAddress(const std::string& text) {
  absl::StatusOr<std::vector<InterfaceAddress>> found = InterfaceAddresses();
  if (!found.ok()) return found.status();
  for (const InterfaceAddress& one : *found) {
    if (text == one.address || text == one.interface) {
      return CollectiveAddress{one.address, one.interface};
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--collectives: '", text,
                   "' is neither an interface of this machine that is up nor an "
                   "IPv4 address of one; there are: ",
                   absl::StrJoin(*found, ", ", [](std::string* out, const InterfaceAddress& one) {
                     absl::StrAppend(out, one.interface, " (", one.address, ")");
                   })));
}

}  // namespace nibble
