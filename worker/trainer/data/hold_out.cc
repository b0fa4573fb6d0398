#include "worker/trainer/data/hold_out.h"

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/data/random_domain.h"

namespace nibble {

absl::StatusOr<HoldOut> HoldOut::Create(uint64_t seed, double fraction) {
  if (!(fraction >= 0 && fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("validation_fraction is %g, not in [0, 1)", fraction));
  }
  return HoldOut(seed, static_cast<uint64_t>(std::ldexp(fraction, 64)));
}

bool HoldOut::Contains(int64_t document) const {
  const auto words = Draw(RandomDomain::kHoldOut, seed_, static_cast<uint64_t>(document), 0);
  return (uint64_t{words.word[1]} << 32 | words.word[0]) < threshold_;
}

}  // namespace nibble
