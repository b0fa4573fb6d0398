#include "server/service/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

absl::Status ReadAuthor(const grpc::CallbackServerContext& context, std::string& author) {
  author = "anonymous";
  const auto said = context.client_metadata().find(kAuthorMetadata);
  if (said == context.client_metadata().end()) return absl::OkStatus();
  author.assign(said->second.data(), said->second.size());
  const bool printable =
      std::all_of(author.begin(), author.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (!printable || author.empty() || std::ssize(author) > kMaxAuthorBytes) {
    return absl::InvalidArgumentError(absl::StrCat(kAuthorMetadata, ": ", author.size(),
                                                   " bytes; allowed: 1 to ", kMaxAuthorBytes,
                                                   " printable characters"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string PeerHost(absl::string_view peer) {
  const bool has_port = absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:");
  const size_t colon = peer.rfind(':');
  if (!has_port || colon < sizeof("ipv4:") - 1) return std::string(peer);
  return std::string(peer.substr(0, colon));
}

absl::StatusOr<CallerIdentity> Admission::Admit(const grpc::CallbackServerContext& context) {
  CallerIdentity caller;
  caller.peer = PeerHost(context.peer());
  absl::Status status = limiter_.Take(caller.peer);
  if (status.ok()) status = ReadAuthor(context, caller.author);
  if (!status.ok()) return status;
  return caller;
}

}  // namespace nibble
