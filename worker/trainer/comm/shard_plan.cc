#include "worker/trainer/comm/shard_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace nibble {

absl::StatusOr<ShardPlan> ShardPlan::Create(std::span<const int64_t> sizes, int world) {
  if (world < 1) {
    return absl::InvalidArgumentError(absl::StrCat("world = ", world, " must be at least 1"));
  }
  if (sizes.size() >= std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("too many parameters: ", sizes.size()));
  }
  std::vector<int64_t> offsets{0};
  offsets.reserve(sizes.size() + 1);
  for (const int64_t size : sizes) {
    const int64_t room = kMaxElements - offsets.back();
    if (size < 0 || size > room) {
      return absl::InvalidArgumentError(absl::StrCat("parameter ", offsets.size() - 1, " has size ",
                                                     size, ", not in [0, ", room, "]"));
    }
    offsets.push_back(offsets.back() + size);
  }
  return ShardPlan(std::move(offsets), world);
}

ShardPlan::ShardPlan(std::vector<int64_t> offsets, int world)
    : offsets_(std::move(offsets)), world_(world) {
  const int64_t even = (total() + world - 1) / world;
  // A model without elements still has shards, so that no rank divides by zero.
  shard_ = std::max<int64_t>((even + kAlignment - 1) / kAlignment, 1) * kAlignment;
}

ShardPlan::Range ShardPlan::range(int rank) const {
  const int64_t begin = rank * shard_;
  return {begin, begin + shard_, std::clamp<int64_t>(total() - begin, 0, shard_)};
}

std::vector<ShardPlan::Piece> ShardPlan::pieces(int rank) const {
  const Range shard = range(rank);
  const int64_t end = shard.begin + shard.used;
  std::vector<Piece> pieces;
  // The last parameter that starts at or before the shard does.
  auto it = std::upper_bound(offsets_.begin(), offsets_.end(), shard.begin);
  for (int param = static_cast<int>(it - offsets_.begin()) - 1;
       param < params() && offsets_[param] < end; ++param) {
    const int64_t from = std::max(offsets_[param], shard.begin);
    const int64_t to = std::min(offsets_[param + 1], end);
    if (from < to) {
      pieces.push_back({param, from - offsets_[param], to - from, from - shard.begin});
    }
  }
  return pieces;
}

}  // namespace nibble
