#include "server/service/admission.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/server_context.h"
#include "server/service/wire.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

// Name of the bucket that peers without one of their own share; no peer has this address.
constexpr char kOthers[] = "others";

}  // namespace

void RateLimiter::Fill(Bucket& bucket, int64_t now_ms) const {
  // A clock that was set back neither adds nor removes tokens.
  const auto passed_ms = static_cast<double>(std::max<int64_t>(0, now_ms - bucket.at_ms));
  bucket.tokens = std::min(limits_.burst, bucket.tokens + passed_ms * limits_.per_second / 1000);
  bucket.at_ms = now_ms;
}

absl::Status RateLimiter::Take(const std::string& peer) {
  if (limits_.per_second <= 0) return absl::OkStatus();
  const int64_t now_ms = clock_.SteadyMs();
  MutexLock lock(&mutex_);
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
                        " per second; retry in ", wait_ms, " ms")),
                    static_cast<int64_t>(wait_ms));
}

size_t RateLimiter::size() const {
  MutexLock lock(&mutex_);
  return buckets_.size();
}

namespace {

absl::Status ReadAuthor(const grpc::CallbackServerContext& context, std::string& author) {
  author = "anonymous";
  const auto author_metadata = context.client_metadata().find(kAuthorMetadata);
  if (author_metadata == context.client_metadata().end()) return absl::OkStatus();
  author.assign(author_metadata->second.data(), author_metadata->second.size());
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
