// What data-parallel ranks shard, beside the batch: the levels of ZeRO (Rajbhandari et al., 2020).
//
//   optimizer  ZeRO-1  FP32 master weights and moments
//   gradients  ZeRO-2  these and the sums of the gradients
//   weights    ZeRO-3  these and the working weights, gathered block by block for each pass
//
// Thread-safety: pure functions.
#ifndef NIBBLE_PLAN_SHARDING_H_
#define NIBBLE_PLAN_SHARDING_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace nibble {

// Each level shards what the levels before it do.
enum class Sharding : uint8_t { kOptimizer, kGradients, kWeights };
inline constexpr std::array<Sharding, 3> kAllShardings = {Sharding::kOptimizer,
                                                          Sharding::kGradients, Sharding::kWeights};

std::string_view ShardingName(Sharding sharding);  // "optimizer", "gradients", "weights"
// A name as above, or zero1, zero2, zero3. InvalidArgument with the text and what is allowed.
absl::StatusOr<Sharding> ParseSharding(std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_PLAN_SHARDING_H_
