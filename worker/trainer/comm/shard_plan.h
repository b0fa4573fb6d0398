// Which part of a model's parameters each rank owns in ZeRO-1: gradients are reduce-scattered to
// the owner, which holds the FP32 master, the optimizer moments and makes the update.
//
// The parameters are concatenated in list order into one flat vector of total() elements, padded at
// its end to padded() = world · shard(). Rank r owns the flat elements [r · shard(), (r + 1) ·
// shard()): equal shards, as ReduceScatter and AllGather need them, each a multiple of kAlignment.
// A shard boundary may be inside a parameter, and the last ranks of a small model may own only
// padding.
//
// Pure: a function of the sizes and the world. Ownership: a value. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_COMM_SHARD_PLAN_H_
#define NIBBLE_WORKER_TRAINER_COMM_SHARD_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble {

class ShardPlan {
 public:
  static constexpr int64_t kAlignment = 64;  // elements
  static constexpr int64_t kMaxElements = int64_t{1} << 60;

  // A run of one parameter inside one shard: elements [begin, begin + count) of parameter `param`
  // are elements [offset, offset + count) of the rank's shard.
  struct Piece {
    int param;
    int64_t begin;
    int64_t count;
    int64_t offset;
    friend bool operator==(const Piece&, const Piece&) = default;
  };

  // sizes: elements of each parameter, zero allowed.
  static absl::StatusOr<ShardPlan> Create(std::span<const int64_t> sizes, int world);

  int world() const { return world_; }
  int params() const { return static_cast<int>(offsets_.size()) - 1; }
  int64_t total() const { return offsets_.back(); }
  int64_t shard() const { return shard_; }
  int64_t padded() const { return shard_ * world_; }
  // Flat position of a parameter's first element; offset(params()) is total().
  int64_t offset(int param) const { return offsets_[param]; }

  // Flat range of a rank; `used` of its elements are parameters, the rest is padding.
  struct Range {
    int64_t begin;
    int64_t end;
    int64_t used;
  };
  Range range(int rank) const;

  // The pieces that a rank owns, in flat order, without empty ones.
  std::vector<Piece> pieces(int rank) const;

  // Rank that owns flat element `flat` of [0, padded()).
  int owner(int64_t flat) const { return static_cast<int>(flat / shard_); }

 private:
  ShardPlan(std::vector<int64_t> offsets, int world);

  std::vector<int64_t> offsets_;  // [params + 1], non-decreasing, from 0
  int world_;
  int64_t shard_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_SHARD_PLAN_H_
