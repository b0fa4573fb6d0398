#include "plan/sharding.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

struct LevelNames {
  std::string_view name, zero;
};
// In the order of the enumeration.
constexpr LevelNames kLevels[] = {
    {"optimizer", "zero1"}, {"gradients", "zero2"}, {"weights", "zero3"}};

}  // namespace

std::string_view ShardingName(Sharding sharding) {
  return kLevels[static_cast<size_t>(sharding)].name;
}

absl::StatusOr<Sharding> ParseSharding(std::string_view text) {
  for (const Sharding sharding : kAllShardings) {
    const LevelNames& names = kLevels[static_cast<size_t>(sharding)];
    if (text == names.name || text == names.zero) return sharding;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", std::string(text),
                   "' is not a level of sharding; allowed: optimizer (zero1), gradients (zero2), "
                   "weights (zero3)"));
}

}  // namespace nibble
