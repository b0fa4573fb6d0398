#include "worker/trainer/data/bpe.h"

#include <cstddef>
#include <cstdint>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace nibble {
namespace {

uint64_t Key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

struct Link {
  int32_t symbol;
  int32_t before, after;  // -1: none
  bool gone = false;      // joined to the one before
};

struct Candidate {
  int32_t rank;
  int32_t at;  // of the left side
  int32_t joined;
};
struct Later {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
  }
};

}  // namespace

BytePairs::BytePairs(const std::vector<Merge>& merges) {
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    merges_[Key(merge.left, merge.right)] = {static_cast<int32_t>(rank), merge.joined};
  }
}

const BytePairs::Joined* BytePairs::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(Key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairs::Join(std::vector<int32_t>& symbols) const {
  if (symbols.size() < 2) return;
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<Link> links(symbols.size());
  std::vector<Candidate> storage;
  storage.reserve(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, Later> queue(Later{}, std::move(storage));
  const auto consider = [&](int32_t at) {
    if (at < 0 || links[at].after < 0) return;
    const Joined* joined = Find(links[at].symbol, links[links[at].after].symbol);
    if (joined != nullptr) queue.push({joined->rank, at, joined->symbol});
  };
  for (int32_t i = 0; i < count; ++i) links[i] = {symbols[i], i - 1, i + 1 < count ? i + 1 : -1};
  for (int32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Link& left = links[top.at];
    if (left.gone || left.after < 0) continue;
    Link& right = links[left.after];
    // Its sides may have changed since. What they join to now counts, by whatever merge: as in
    // Hugging Face's.
    const Joined* now = Find(left.symbol, right.symbol);
    if (now == nullptr || now->symbol != top.joined) continue;
    left.symbol = top.joined;
    left.after = right.after;
    right.gone = true;
    if (left.after >= 0) links[left.after].before = top.at;
    consider(left.before);
    consider(top.at);
  }
  symbols.clear();
  for (int32_t i = 0; i >= 0; i = links[i].after) symbols.push_back(links[i].symbol);
}

}  // namespace nibble
