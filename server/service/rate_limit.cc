#include "server/service/rate_limit.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/service/grpc_status.h"

namespace nibble {
namespace {

// Of those that are not told apart; no address.
constexpr char kOthers[] = "others";

}  // namespace

void RateLimiter::Fill(Bucket& bucket, int64_t now_ms) const {
  // A clock that was set back gives nothing and takes nothing.
  const auto passed_ms = static_cast<double>(std::max<int64_t>(0, now_ms - bucket.at_ms));
  bucket.tokens = std::min(limits_.burst, bucket.tokens + passed_ms * limits_.per_second / 1000);
  bucket.at_ms = now_ms;
}

absl::Status RateLimiter::Take(const std::string& peer) {
  if (limits_.per_second <= 0) return absl::OkStatus();
  const int64_t now_ms = clock_.SteadyMs();
  std::lock_guard lock(mutex_);
  auto found = buckets_.find(peer);
  if (found == buckets_.end()) {
    if (buckets_.size() >= limits_.peers) {
      absl::erase_if(buckets_, [this, now_ms](auto& entry) {
        Fill(entry.second, now_ms);
        return entry.second.tokens >= limits_.burst;
      });
    }
    const std::string& name = buckets_.size() < limits_.peers ? peer : kOthers;
    found = buckets_.try_emplace(name, Bucket{limits_.burst, now_ms}).first;
  }
  Bucket& bucket = found->second;
  Fill(bucket, now_ms);
  if (bucket.tokens >= 1) {
    bucket.tokens -= 1;
    return absl::OkStatus();
  }
  const double wait_ms = std::ceil((1 - bucket.tokens) * 1000 / limits_.per_second);
  return RetryAfter(absl::ResourceExhaustedError(absl::StrCat(
                        "requests of ", found->first, ": allowed: ", limits_.per_second,
                        " per second; come again in ", wait_ms, " ms")),
                    static_cast<int64_t>(wait_ms));
}

size_t RateLimiter::size() const {
  std::lock_guard lock(mutex_);
  return buckets_.size();
}

}  // namespace nibble
