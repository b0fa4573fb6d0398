#include "worker/agent/watchdog.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace nibble {

std::vector<HungRank> FindHung(const std::map<int32_t, LinkHost::Rank>& ranks,
                               const WatchdogLimits& limits, int64_t now_ms) {
  std::vector<HungRank> hung;
  for (const auto& [number, rank] : ranks) {
    // Without a median it is still loading, or in its first steps.
    if (!rank.connected || rank.news.doing != RankNews::Doing::kSteps || rank.median_step_ms == 0) {
      continue;
    }
    const int64_t since = now_ms - rank.step_at_ms;
    const auto allowed = std::max(
        limits.least_ms,
        static_cast<int64_t>(limits.median_steps * static_cast<double>(rank.median_step_ms)));
    if (since <= allowed) continue;
    const std::string& where = rank.news.waiting_in;
    hung.push_back(
        {.rank = number,
         .since_ms = since,
         .waits = !where.empty(),
         .detail = absl::StrCat("rank ", number, " has made no step for ", since,
                                " ms, its median is ", rank.median_step_ms, " ms; before step ",
                                rank.news.next_step, where.empty() ? "" : ", waits in ", where)});
  }
  std::stable_partition(hung.begin(), hung.end(), [&ranks](const HungRank& one) {
    return ranks.at(one.rank).news.waiting_in.empty();
  });
  return hung;
}

}  // namespace nibble
