#include "server/service/worker_addresses.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

// The peer as gRPC names it without its port, such as "ipv6:%5B::1%5D", as an address; unset for a
// Unix socket.
absl::StatusOr<ListenAddress> AddressOfPeer(const std::string& peer) {
  const size_t colon = peer.find(':');
  return ParseNamedAddress(
      "peer", absl::StrCat(
                  absl::StrReplaceAll(peer.substr(colon + 1), {{"%5B", "["}, {"%5D", "]"}}), ":1"));
}

bool IsIp(const std::string& peer) {
  return absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:");
}

// Whether the peer is on this machine.
bool IsLocal(const std::string& peer) {
  if (!IsIp(peer)) return true;  // a Unix socket
  const auto address = AddressOfPeer(peer);
  return address.ok() && address->loopback;
}

bool IsLinkLocal(const std::string& peer) {
  if (!IsIp(peer)) return false;
  // A zone ("fe80::1%eth0") is no part of a named address.
  const auto address = AddressOfPeer(
      absl::StrCat(peer.substr(0, peer.find("%25")), absl::StrContains(peer, "%25") ? "]" : ""));
  return address.ok() && address->link_local;
}

// Whether an interface of this machine has the IP address.
bool IsOfThisMachine(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "0", &hints, &found) != 0) return false;
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  const int probe = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  const bool bound = bind(probe, found->ai_addr, found->ai_addrlen) == 0;
  close(probe);
  return bound;
}

}  // namespace

bool WorkerAddresses::IsOwn(const ListenAddress& named, const std::string& peer) const {
  return std::any_of(own_.begin(), own_.end(), [&](const ListenAddress& own) {
    if (named.port != own.port) return false;
    if (named.host == own.host) return true;
    if (named.loopback) return IsLocal(peer) && (own.any || own.loopback);
    return own.any && IsOfThisMachine(named.host);
  });
}

absl::Status WorkerAddresses::CheckOne(const char* field, const std::string& address,
                                       const std::string& peer) const {
  NIBBLE_ASSIGN_OR_RETURN(const ListenAddress named, ParseNamedAddress(field, address));
  const auto refused = [&](const char* what) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": '", address, "' is ", what, ", and the worker connects from ", peer,
                     "; allowed: host:port at which other machines reach it (nibble-worker "
                     "--address)"));
  };
  if (IsOwn(named, peer)) return refused("the coordinator's");
  if (named.loopback && !IsLocal(peer)) return refused("loopback");
  if (named.link_local && !IsLinkLocal(peer)) return refused("link-local");
  return absl::OkStatus();
}

absl::Status WorkerAddresses::Check(const v1::WorkerIdentity& identity,
                                    const std::string& peer) const {
  NIBBLE_RETURN_IF_ERROR(CheckOne("identity.address", identity.address(), peer));
  if (identity.http_address().empty()) return absl::OkStatus();
  return CheckOne("identity.http_address", identity.http_address(), peer);
}

}  // namespace nibble
