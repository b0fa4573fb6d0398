// Who a caller is, and whether its call is admitted. This is the one place where a call's context
// becomes an identity: certificates, tokens and roles will be checked here, and the services use
// nothing else of the context.
//
// Until callers are authenticated, the author of a change is whatever the caller puts into the
// metadata `nibble-author`, or "anonymous": a name for people to read, without any rights.
//
// Ownership: limits are owned, the clock is borrowed. Thread-safety: all methods may be called from
// any thread.
#ifndef NIBBLE_SERVER_SERVICE_ADMISSION_H_
#define NIBBLE_SERVER_SERVICE_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"
#include "server/controller/clock.h"

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace nibble {

inline constexpr char kAuthorMetadata[] = "nibble-author";

struct RateLimits {
  double per_second = 10'000;  // requests of one peer; 0: unlimited
  double burst = 20'000;       // requests at once after a pause; at least 1
  size_t peers = 10'000;       // peers that have a bucket of their own
};

// A token bucket per peer. A bucket that is full again is dropped when space is needed, and there
// are never more than `peers` buckets: beyond that, all new peers share one.
class RateLimiter {
 public:
  RateLimiter(const Clock& clock, const RateLimits& limits) : clock_(clock), limits_(limits) {}

  // ResourceExhausted, naming the peer, the rate and when to retry.
  absl::Status Take(const std::string& peer);
  // The number of buckets.
  size_t size() const;

 private:
  struct Bucket {
    double tokens = 0;
    int64_t at_ms = 0;
  };

  void Fill(Bucket& bucket, int64_t now_ms) const;

  const Clock& clock_;
  const RateLimits limits_;
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, Bucket> buckets_ ABSL_GUARDED_BY(mutex_);  // by peer
};

struct CallerIdentity {
  std::string author;  // the author of the caller's changes
  std::string peer;    // address without port; the unit of rate limiting
};

class Admission {
 public:
  Admission(const Clock& clock, const RateLimits& limits) : limiter_(clock, limits) {}

  // ResourceExhausted: too many requests from this peer. InvalidArgument: the metadata is no name
  // of 1 to kMaxAuthorBytes.
  absl::StatusOr<CallerIdentity> Admit(const grpc::CallbackServerContext& context);

 private:
  RateLimiter limiter_;
};

// The peer without its port: "ipv4:10.0.0.7" for "ipv4:10.0.0.7:41234". A peer without a port is
// returned unchanged.
std::string PeerHost(absl::string_view peer);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_ADMISSION_H_
