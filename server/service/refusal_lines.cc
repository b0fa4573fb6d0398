#include "server/service/refusal_lines.h"

#include <algorithm>

namespace nibble {
namespace {

// Of addresses that are not counted apart; no peer has this address.
constexpr char kOtherAddresses[] = "others";

}  // namespace

bool RefusalLines::Take(const std::string& address) {
  if (limiter_.Take(address).ok()) return true;
  const MutexLock lock(&mutex_);
  auto found = counts_.find(address);
  if (found == counts_.end()) {
    found =
        counts_.try_emplace(counts_.size() < limits_.addresses ? address : kOtherAddresses).first;
  }
  ++found->second;
  return false;
}

std::vector<std::pair<std::string, int64_t>> RefusalLines::TakeCounts(bool end) {
  const int64_t now_ms = clock_.SteadyMs();
  const MutexLock lock(&mutex_);
  std::vector<std::pair<std::string, int64_t>> counts;
  if (!end && now_ms - counted_ms_ < limits_.count_ms) return counts;
  counted_ms_ = now_ms;
  counts.assign(counts_.begin(), counts_.end());
  counts_.clear();
  std::sort(counts.begin(), counts.end());
  return counts;
}

}  // namespace nibble
