#include "common/protocol/protocol_version.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/version.h"

namespace nibble {

absl::Status CheckProtocol(absl::string_view worker, absl::string_view version, int32_t protocol,
                           int32_t own) {
  const int64_t spoken = protocol == 0 ? 1 : protocol;
  const int64_t least = std::max(1, own - 1);
  const int64_t most = int64_t{own} + 1;
  if (spoken >= least && spoken <= most) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "identity.protocol: worker ", worker, ", version ", version.empty() ? "unknown" : version,
      ", speaks protocol ", spoken, "; this coordinator, version ", kVersion, ", speaks ", own,
      "; allowed: ", least, " to ", most, "; upgrade the ",
      spoken > most ? "coordinator" : "worker", " first"));
}

}  // namespace nibble
