#include "worker/agent/standby_ranks.h"

#include <iterator>
#include <utility>

namespace nibble {

void StandbyRanks::Add(int32_t slot, Rank rank) {
  MutexLock lock(&mutex_);
  ranks_.emplace(slot, std::move(rank));
}

void StandbyRanks::End(const Rank& rank) {
  (void)supervisor_.Kill(rank.process);
  (void)supervisor_.AwaitEnd(rank.process);
}

std::optional<StandbyRanks::Rank> StandbyRanks::Take(int32_t slot, const std::string& job) {
  std::vector<Rank> there;
  {
    MutexLock lock(&mutex_);
    const auto [begin, end] = ranks_.equal_range(slot);
    for (auto at = begin; at != end; ++at) there.push_back(std::move(at->second));
    ranks_.erase(begin, end);
  }
  std::optional<Rank> taken;
  for (Rank& rank : there) {
    if (!taken.has_value() && rank.job == job && supervisor_.PidOf(rank.process).ok()) {
      taken = std::move(rank);
    } else {
      End(rank);
    }
  }
  return taken;
}

void StandbyRanks::Prune() {
  std::vector<Rank> ended;
  {
    MutexLock lock(&mutex_);
    for (auto at = ranks_.begin(); at != ranks_.end();) {
      const bool runs = supervisor_.PidOf(at->second.process).ok();
      if (!runs) ended.push_back(std::move(at->second));
      at = runs ? std::next(at) : ranks_.erase(at);
    }
  }
  // May wait for the last output, so without the lock.
  for (const Rank& rank : ended) End(rank);
}

size_t StandbyRanks::size() const {
  MutexLock lock(&mutex_);
  return ranks_.size();
}

}  // namespace nibble
