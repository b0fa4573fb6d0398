#include "server/service/refusal_lines.h"

#include <algorithm>

namespace nibble {
namespace {

// No peer has one of these addresses.
constexpr char kOtherAddresses[] = "others";
constexpr char kAllAddresses[] = "all";

}  // namespace

bool RefusalLines::Take(const std::string& address) {
  if (of_address_.Take(address).ok() && of_all_.Take(kAllAddresses).ok()) return true;
  const MutexLock lock(&mutex_);
  auto found = counts_.find(address);
  if (found == counts_.end()) {
    found =
        counts_.try_emplace(counts_.size() < limits_.addresses ? address : kOtherAddresses).first;
  }
  ++found->second;
  return false;
}

RefusalLines::Counts RefusalLines::TakeCounts(bool end) {
  const int64_t now_ms = clock_.SteadyMs();
  const MutexLock lock(&mutex_);
  if (!end && now_ms - counted_ms_ < limits_.count_ms) return {};
  counted_ms_ = now_ms;
  Counts counts(counts_.begin(), counts_.end());
  counts_.clear();
  std::sort(counts.begin(), counts.end());
  return counts;
}

}  // namespace nibble
