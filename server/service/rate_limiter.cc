#include "server/service/rate_limiter.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/service/wire.h"

namespace nibble {
namespace {

// Name of the bucket that peers without one of their own share; no peer has this address.
constexpr char kOthers[] = "others";
constexpr double kMsPerSecond = 1000;

}  // namespace

void RateLimiter::Fill(Bucket& bucket, int64_t now_ms) const {
  // A clock that was set back neither adds nor removes tokens.
  const auto passed_ms = static_cast<double>(std::max<int64_t>(0, now_ms - bucket.at_ms));
  bucket.tokens =
      std::min(limits_.burst, bucket.tokens + passed_ms * limits_.per_second / kMsPerSecond);
  bucket.at_ms = now_ms;
}

RateLimiter::Bucket& RateLimiter::Find(const std::string& peer, int64_t now_ms, std::string& name) {
  auto found = buckets_.find(peer);
  if (found == buckets_.end()) {
    if (buckets_.size() >= limits_.peers) {
      absl::erase_if(buckets_, [this, now_ms](auto& entry) {
        Fill(entry.second, now_ms);
        return entry.second.tokens >= limits_.burst &&
               entry.second.free_ms <= static_cast<double>(now_ms);
      });
    }
    found = buckets_
                .try_emplace(buckets_.size() < limits_.peers ? peer : kOthers,
                             Bucket{limits_.burst, now_ms})
                .first;
  }
  Fill(found->second, now_ms);
  name = found->first;
  return found->second;
}

absl::Status RateLimiter::Take(const std::string& peer) {
  if (limits_.per_second <= 0) return absl::OkStatus();
  const int64_t now_ms = clock_.SteadyMs();
  const MutexLock lock(&mutex_);
  std::string name;
  Bucket& bucket = Find(peer, now_ms, name);
  if (bucket.tokens >= 1) {
    bucket.tokens -= 1;
    return absl::OkStatus();
  }
  const double wait_ms = std::ceil((1 - bucket.tokens) * kMsPerSecond / limits_.per_second);
  return RetryAfter(absl::ResourceExhaustedError(
                        absl::StrCat("requests of ", name, ": allowed: ", limits_.per_second,
                                     " per second; retry in ", wait_ms, " ms")),
                    static_cast<int64_t>(wait_ms));
}

RefusalTurn RateLimiter::Refuse(const std::string& peer) {
  if (limits_.refusals_per_second <= 0) return {};
  const int64_t now_ms = clock_.SteadyMs();
  const MutexLock lock(&mutex_);
  std::string name;
  Bucket& bucket = Find(peer, now_ms, name);
  const double turn_ms = std::max(bucket.free_ms, static_cast<double>(now_ms));
  const auto after_ms = static_cast<int64_t>(std::ceil(turn_ms)) - now_ms;
  if (after_ms > limits_.refusal_wait_ms) return {.flooding = true};
  bucket.free_ms = turn_ms + kMsPerSecond / limits_.refusals_per_second;
  return {.after_ms = after_ms};
}

size_t RateLimiter::size() const {
  const MutexLock lock(&mutex_);
  return buckets_.size();
}

}  // namespace nibble
