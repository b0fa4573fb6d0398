#include "worker/checkpoint/retention.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {

absl::Status CheckRetention(const Retention& retention) {
  if (retention.keep_last < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep_last is ", retention.keep_last, "; at least 1 is allowed"));
  }
  if (retention.keep_every < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep_every is ", retention.keep_every, "; at least 0 is allowed"));
  }
  return absl::OkStatus();
}

std::vector<StoredDirectory> ToDelete(const std::vector<StoredDirectory>& committed,
                                      const std::set<int64_t>& pinned,
                                      const Retention& retention) {
  std::vector<StoredDirectory> gone;
  std::set<int64_t> seen;
  for (auto it = committed.rbegin(); it != committed.rend(); ++it) {
    if (!seen.insert(it->step).second) {
      gone.push_back(*it);
      continue;
    }
    const bool last = static_cast<int64_t>(seen.size()) <= retention.keep_last;
    const bool nth = retention.keep_every > 0 && it->step % retention.keep_every == 0;
    if (!last && !nth && !pinned.contains(it->step)) gone.push_back(*it);
  }
  std::reverse(gone.begin(), gone.end());
  return gone;
}

}  // namespace nibble
