// Who a caller is, and whether the call is let in: the one place where a call's context becomes an
// identity. Whatever is to be known of a caller (certificates, tokens, roles) is found out here and
// carried on in Caller's place; the services ask for nothing else of the context.
//
// Until callers are authenticated, the author of a change is what the caller says in the metadata
// `nibble-author`, or "anonymous": a name for people to read, no right to anything.
//
// Ownership: owns its limits; borrows the clock. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_SERVICE_ADMISSION_H_
#define NIBBLE_SERVER_SERVICE_ADMISSION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "server/controller/clock.h"
#include "server/service/rate_limit.h"

namespace nibble {

inline constexpr char kAuthorMetadata[] = "nibble-author";

struct CallerIdentity {
  std::string author;  // in whose name changes are made
  std::string peer;    // address without its port: whose requests are counted together
};

class Admission {
 public:
  Admission(const Clock& clock, const RateLimits& limits) : limiter_(clock, limits) {}

  // ResourceExhausted: too many requests of this peer. InvalidArgument where the metadata is no
  // name of 1 to kMaxAuthorBytes.
  absl::StatusOr<CallerIdentity> Admit(const grpc::CallbackServerContext& context);

 private:
  RateLimiter limiter_;
};

// "ipv4:10.0.0.7:41234" is of "ipv4:10.0.0.7"; what has no port stays as it is.
std::string PeerHost(absl::string_view peer);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_ADMISSION_H_
